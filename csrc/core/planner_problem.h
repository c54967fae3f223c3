// A placement problem in the planner's own units: sizes and offsets count alignment units, instants are dense.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/planner.h"

namespace stalloc {

// Instants are renumbered so that each stands for one maximal set of buffers that live at once: births
// between which nothing dies are one instant. Which buffers overlap in time does not change.
using Instant = std::int32_t;
using ItemIndex = std::int32_t;
using Units = std::int64_t;

struct Item {
  Instant lower = 0;
  Instant upper = 0;
  Units size = 0;
};

struct FixedItem {
  Instant lower = 0;
  Instant upper = 0;
  Units begin = 0;
  Units end = 0;
};

struct Problem {
  std::vector<Item> items;
  std::vector<FixedItem> obstacles;  // rounded outwards to whole units; disjoint in no particular way
  Instant num_instants = 0;
  std::vector<Units> live;  // by instant: sizes of items that live then, plus what the obstacles cover then
  Units lower_bound = 0;    // the most that lives at once, or the highest end of an obstacle
  Bytes unit_bytes = 1;

  ItemIndex size() const noexcept { return static_cast<ItemIndex>(items.size()); }
};

// Offsets by item; kUnplaced where there is none yet.
using Offsets = std::vector<Units>;

// Throws Error on input that is not a problem (see place()).
Problem make_problem(const std::vector<Buffer>& buffers, const std::vector<Obstacle>& obstacles,
                     Bytes alignment);

// The highest end of an item or obstacle. Items without an offset are left out.
Units peak_of(const Problem& problem, const Offsets& offsets);

}  // namespace stalloc
