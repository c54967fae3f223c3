// Places items one after the other, each into the tightest gap that what is already placed leaves.
#pragma once

#include <utility>
#include <vector>

#include "core/planner_problem.h"

namespace stalloc {

// What is placed, found by lifetime. An interval tree over instants: an entry is kept at the topmost node
// whose middle it spans. O(log n + found) a query, memory linear in entries and instants.
class PlacedIndex {
 public:
  // Starts with all that has an offset.
  PlacedIndex(const Problem& problem, const Offsets& offsets);

  void add(ItemIndex i, Units offset);
  // The start of the tightest gap that holds the item for its life; the end of all when there is none.
  Units tightest_place(const Item& item);
  // The lowest start where the item fits for its life.
  Units lowest_place(const Item& item);

 private:
  struct Entry {
    Instant lower = 0;
    Instant upper = 0;
    Units begin = 0;
    Units end = 0;
  };

  void collect(std::size_t node, Instant begin, Instant end, const Item& item);
  void collect_sorted(const Item& item);

  const Problem& problem_;
  std::vector<std::vector<Entry>> nodes_;  // heap order
  std::vector<ItemIndex> count_;           // entries at and below each node
  std::vector<std::pair<Units, Units>> ranges_;  // of the query at hand
};

// Gives every unplaced item a place, larger and longer ones first, wherever it is lowest or tightest; the
// peak is what it becomes.
void place_rest(const Problem& problem, Offsets& offsets);

}  // namespace stalloc
