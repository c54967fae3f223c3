// Places items one after the other, each into the tightest gap that what is already placed leaves.
#pragma once

#include <utility>
#include <vector>

#include "core/planner_problem.h"

namespace stalloc {

struct PlacedItem {
  Instant lower = 0;
  Instant upper = 0;
  Units begin = 0;
  Units end = 0;
};

// What is placed, found by lifetime. An interval tree over instants: an entry is kept at the topmost node
// whose middle it spans. O(log n + found) a query, memory linear in entries and instants.
class PlacedIndex {
 public:
  explicit PlacedIndex(Instant num_instants);

  void add(const PlacedItem& placed);
  // The address ranges [begin, end) of all that lives at some time in [lower, upper), appended unsorted.
  void collect(Instant lower, Instant upper, std::vector<std::pair<Units, Units>>& ranges) const;

 private:
  void collect_below(std::size_t node, Instant begin, Instant end, Instant lower, Instant upper,
                     std::vector<std::pair<Units, Units>>& ranges) const;

  Instant num_instants_;
  std::vector<std::vector<PlacedItem>> nodes_;  // heap order
  std::vector<ItemIndex> count_;               // entries at and below each node
};

// The tightest gap that holds `size` below the highest range, else the end of the highest. Sorts `ranges`.
Units tightest_gap(std::vector<std::pair<Units, Units>>& ranges, Units size);

// Larger items first, longer ones first among equals. `stop` is polled: what is left when it says so stays
// unplaced.
Offsets place_by_size(const Problem& problem);

// Places items in the given order.
Offsets place_in_order(const Problem& problem, const std::vector<ItemIndex>& order);

}  // namespace stalloc
