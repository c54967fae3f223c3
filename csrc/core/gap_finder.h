// Finds room for a request without a slot where no slot of the plan will be needed while it lives.
// Not thread-safe: the engine's lock guards it.
#pragma once

#include <array>
#include <vector>

#include "core/block_map.h"
#include "core/plan.h"

namespace stalloc {

// Room in a free block of a map.
struct Gap {
  BlockMap::BlockIndex block = BlockMap::kNoBlock;
  Bytes offset = kUnplaced;  // in the map
  Bytes size = 0;            // of all that is free there for the span asked for
  explicit operator bool() const noexcept { return block != BlockMap::kNoBlock; }
};

class GapFinder {
 public:
  // Once something was found, so many more free blocks are looked at for something smaller.
  static constexpr std::size_t kMaxLooks = 64;

  explicit GapFinder(const Plan& plan);

  // The smallest gap found that holds `size` bytes and in which no slot of the space is born in (now, until), both on the
  // plan's timeline; `until` may pass the window's end. `begin` is where the map's extent begins in the plan's address
  // space. `sparing`: nor one of those slots that it costs most to keep from their requests, as long as they are to come. No
  // gap only when there is none. It is the smallest of all while at most kMaxLooks free blocks hold the request.
  // O(births in the span + free blocks looked at); never allocates.
  Gap find(BlockMap& map, RoleIndex space, Bytes begin, Bytes size, Tick now, Tick until, bool sparing = false) noexcept;

 private:
  struct Range {
    Bytes begin;
    Bytes end;
  };
  // What the slots of one space need, by the order of their births. Node i of level k covers the births
  // [i * kLeaf << k, (i + 1) * kLeaf << k) and holds their ranges, sorted and merged: slots that follow each other in the
  // same place count once, so that long spans take few ranges.
  struct Needs {
    std::vector<Tick> births;
    std::vector<Range> slots;
    struct Level {
      std::vector<std::size_t> node_begin;  // into ranges, one more than nodes
      std::vector<Range> ranges;
    };
    std::vector<Level> levels;
    std::size_t last_begin = 0;  // where the births of the last span began
  };
  static constexpr std::size_t kLeaf = 8;
  static constexpr std::size_t kMaxRuns = 128;

  static Needs needs_of(const Plan& plan, RoleIndex space, bool spared);
  static void add_level(Needs& needs);
  void collect_span(RoleIndex space, Bytes size, Tick now, Tick until, bool sparing) noexcept;
  std::size_t collect(const Needs& needs, Bytes size, std::size_t from, Tick after, Tick before) noexcept;
  void add_run(const Range* first, const Range* last, Bytes size) noexcept;
  void add_unsorted(const Range* first, const Range* last, Bytes size) noexcept;
  void merge_runs(Bytes size) noexcept;
  Range* merge(const Range* a, const Range* b, const Range* end, Bytes size, Range* out) const noexcept;
  void look_into(const BlockMap& map, BlockMap::BlockIndex block, Bytes begin, Bytes size, Gap& best) const noexcept;

  Tick window_begin_;
  Tick window_end_;
  std::vector<Needs> needs_;    // by space
  std::vector<Needs> spared_;   // of those that are spared
  // Scratch: what is needed in the span, as sorted runs one after another, and in the end as one.
  std::vector<Range> needed_;
  std::vector<Range> merged_;  // where the runs are merged to
  std::array<std::size_t, kMaxRuns + 1> run_begin_{};  // into needed_, one more than runs
  std::size_t num_runs_ = 0;
  // What the scratch holds now. Requests that nothing foretells, an evaluation's for one, ask for one span again and again.
  struct Span {
    RoleIndex space = -1;
    Bytes size = 0;  // holes below it are left out
    Tick now = 0;
    Tick until = 0;
    bool sparing = false;
  } span_;
};

}  // namespace stalloc
