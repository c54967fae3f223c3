#include "core/planner_best_fit.h"

#include <algorithm>

namespace stalloc {

PlacedIndex::PlacedIndex(const Problem& problem, const Offsets& offsets) : problem_(problem) {
  std::size_t capacity = 1;
  while (capacity < static_cast<std::size_t>(problem.num_instants)) capacity *= 2;
  nodes_.resize(2 * capacity);
  count_.resize(2 * capacity, 0);
  for (ItemIndex i = 0; i < problem.num_items(); ++i) {
    if (offsets[static_cast<std::size_t>(i)] != kUnplaced) add(i, offsets[static_cast<std::size_t>(i)]);
  }
}

void PlacedIndex::add(ItemIndex i, Units offset) {
  const Item& item = problem_.item(i);
  std::size_t node = 1;
  Instant begin = 0, end = problem_.num_instants;
  for (;;) {
    ++count_[node];
    const Instant middle = begin + (end - begin) / 2;
    if (item.upper <= middle) {
      node = 2 * node, end = middle;
    } else if (item.lower > middle) {
      node = 2 * node + 1, begin = middle + 1;
    } else {
      break;
    }
  }
  nodes_[node].push_back({item.lower, item.upper, offset, offset + item.size});
}

void PlacedIndex::collect(std::size_t node, Instant begin, Instant end, const Item& item) {
  if (node >= nodes_.size() || begin >= end || count_[node] == 0) return;
  for (const Entry& entry : nodes_[node]) {
    if (entry.lower < item.upper && item.lower < entry.upper) ranges_.emplace_back(entry.begin, entry.end);
  }
  const Instant middle = begin + (end - begin) / 2;
  if (item.lower < middle) collect(2 * node, begin, middle, item);
  if (item.upper > middle + 1) collect(2 * node + 1, middle + 1, end, item);
}

void PlacedIndex::collect_sorted(const Item& item) {
  ranges_.clear();
  collect(1, 0, problem_.num_instants, item);
  std::sort(ranges_.begin(), ranges_.end());
}

Units PlacedIndex::tightest_place(const Item& item) {
  collect_sorted(item);
  Units best = kUnplaced, best_gap = 0, reached = 0;
  for (const auto& [begin, end] : ranges_) {
    const Units gap = begin - reached;
    if (gap >= item.size && (best == kUnplaced || gap < best_gap)) best = reached, best_gap = gap;
    reached = std::max(reached, end);
  }
  return best == kUnplaced ? reached : best;
}

Units PlacedIndex::lowest_place(const Item& item) {
  collect_sorted(item);
  Units reached = 0;
  for (const auto& [begin, end] : ranges_) {
    if (begin - reached >= item.size) break;
    reached = std::max(reached, end);
  }
  return reached;
}

void place_rest(const Problem& problem, Offsets& offsets) {
  std::vector<ItemIndex> rest;
  for (ItemIndex i = 0; i < problem.num_movable; ++i) {
    if (offsets[static_cast<std::size_t>(i)] == kUnplaced) rest.push_back(i);
  }
  if (rest.empty()) return;
  std::sort(rest.begin(), rest.end(), [&](ItemIndex left, ItemIndex right) {
    const Item &a = problem.item(left), &b = problem.item(right);
    if (a.size != b.size) return a.size > b.size;
    if (a.upper - a.lower != b.upper - b.lower) return a.upper - a.lower > b.upper - b.lower;
    return left < right;
  });
  PlacedIndex index(problem, offsets);
  for (const ItemIndex i : rest) {
    const Units offset = index.tightest_place(problem.item(i));
    offsets[static_cast<std::size_t>(i)] = offset;
    index.add(i, offset);
  }
}

}  // namespace stalloc
