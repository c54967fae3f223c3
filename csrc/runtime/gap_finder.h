// Finds room for a request without a slot where no slot of the plan will be needed while it lives.
// Not thread-safe: the engine's lock guards it.
#pragma once

#include <vector>

#include "core/block_map.h"
#include "core/plan.h"

namespace stalloc {

class GapFinder {
 public:
  explicit GapFinder(const Plan& plan);

  // The offset in `map` of the smallest free range found that holds `size` bytes and in which no slot of the space is
  // born in (now, until), both on the plan's timeline; `until` may pass the window's end. `begin` is where the map's
  // extent begins in the plan's address space. kUnplaced when there is none. O(blocks + slots born meanwhile); never
  // allocates.
  Bytes find(const BlockMap& map, RoleIndex space, Bytes begin, Bytes size, Tick now, Tick until) noexcept;

 private:
  struct Birth {
    Tick tick;
    Bytes offset;
    Bytes size;
  };
  struct Range {
    Bytes begin;
    Bytes end;
  };
  void collect(const std::vector<Birth>& births, Bytes begin, Tick after, Tick before) noexcept;

  Tick window_begin_;
  Tick window_end_;
  std::vector<std::vector<Birth>> births_;  // by space, by tick
  std::vector<Range> needed_;               // scratch
};

}  // namespace stalloc
