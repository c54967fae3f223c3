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
  // extent begins in the plan's address space. kUnplaced when there is none. O(blocks); never allocates.
  Bytes find(const BlockMap& map, RoleIndex space, Bytes begin, Bytes size, Tick now, Tick until) noexcept;

 private:
  struct Range {
    Bytes begin;
    Bytes end;
  };
  // What the slots of one space need, by the order of their births. Node i of level k covers the births
  // [i * kLeaf << k, (i + 1) * kLeaf << k) and holds their ranges, merged: slots that follow each other in the same
  // place count once, so that long spans take few ranges.
  struct Needs {
    std::vector<Tick> births;
    std::vector<Range> slots;
    struct Level {
      std::vector<std::size_t> node_begin;  // into ranges, one more than nodes
      std::vector<Range> ranges;
    };
    std::vector<Level> levels;
  };
  static constexpr std::size_t kLeaf = 16;

  static Needs needs_of(const Plan& plan, RoleIndex space);
  static void add_level(Needs& needs);
  void collect(const Needs& needs, Tick after, Tick before) noexcept;
  void take(const Range* first, const Range* last) noexcept;

  Tick window_begin_;
  Tick window_end_;
  std::vector<Needs> needs_;   // by space
  std::vector<Range> needed_;  // scratch
};

}  // namespace stalloc
