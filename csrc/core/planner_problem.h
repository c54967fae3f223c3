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

// Offsets by item; kUnplaced where there is none yet.
using Offsets = std::vector<Units>;

// Items [0, num_movable) are to be placed, the rest is where `fixed_offsets` says. Fixed items never share
// bytes at one instant, so that they are like any other placed item.
struct Problem {
  std::vector<Item> items;
  ItemIndex num_movable = 0;
  Offsets fixed_offsets;
  Instant num_instants = 0;
  std::vector<Units> live;  // by instant: the sizes of what lives then
  Units lower_bound = 0;    // the most that lives at once, or the highest end of a fixed item
  Bytes unit_bytes = 1;

  ItemIndex num_items() const noexcept { return static_cast<ItemIndex>(items.size()); }
  const Item& item(ItemIndex i) const noexcept { return items[static_cast<std::size_t>(i)]; }
  bool is_fixed(ItemIndex i) const noexcept { return i >= num_movable; }
};

// Throws Error on input that is not a problem (see place()).
Problem make_problem(const std::vector<Buffer>& buffers, const std::vector<Obstacle>& obstacles,
                     Bytes alignment);

// Fills `live` and `lower_bound` from the items.
void compute_live(Problem& problem);

// Only the fixed items placed.
Offsets unplaced_offsets(const Problem& problem);

// The highest end of a placed item.
Units peak_of(const Problem& problem, const Offsets& offsets);

// A part of a problem that shares no instant with any other part, as a problem of its own.
struct Component {
  Problem problem;
  std::vector<ItemIndex> origin;  // its movable items in the whole problem
};

// Where a component lies in the whole problem; a Component is made of it when its turn comes, which keeps
// memory small.
struct ComponentSpan {
  Instant begin = 0;
  Instant end = 0;
  Units lower_bound = 0;
  std::vector<ItemIndex> items;  // movable ones
};

// Cuts where no movable item lives. With fixed items, which every component repeats, parts are kept large
// enough for that to cost little.
std::vector<ComponentSpan> find_components(const Problem& problem);
Component make_component(const Problem& problem, const ComponentSpan& span);

}  // namespace stalloc
