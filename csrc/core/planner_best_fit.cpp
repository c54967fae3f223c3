#include "core/planner_best_fit.h"

#include <algorithm>
#include <numeric>

namespace stalloc {
namespace {

PlacedItem placed_item(const Problem& problem, const Offsets& offsets, ItemIndex i) {
  const Units offset = offsets[static_cast<std::size_t>(i)];
  return {problem.item(i).lower, problem.item(i).upper, offset, offset + problem.item(i).size};
}

}  // namespace

PlacedIndex::PlacedIndex(Instant num_instants) : num_instants_(num_instants) {
  std::size_t capacity = 1;
  while (capacity < static_cast<std::size_t>(num_instants)) capacity *= 2;
  nodes_.resize(2 * capacity);
  count_.resize(2 * capacity, 0);
}

void PlacedIndex::add(const PlacedItem& placed) {
  std::size_t node = 1;
  Instant begin = 0, end = num_instants_;
  for (;;) {
    ++count_[node];
    const Instant middle = begin + (end - begin) / 2;
    if (placed.upper <= middle) {
      node = 2 * node, end = middle;
    } else if (placed.lower > middle) {
      node = 2 * node + 1, begin = middle + 1;
    } else {
      break;
    }
  }
  nodes_[node].push_back(placed);
}

void PlacedIndex::collect(Instant lower, Instant upper, std::vector<std::pair<Units, Units>>& ranges) const {
  collect_below(1, 0, num_instants_, lower, upper, ranges);
}

void PlacedIndex::collect_below(std::size_t node, Instant begin, Instant end, Instant lower, Instant upper,
                                std::vector<std::pair<Units, Units>>& ranges) const {
  if (node >= nodes_.size() || begin >= end || count_[node] == 0) return;
  for (const PlacedItem& entry : nodes_[node]) {
    if (entry.lower < upper && lower < entry.upper) ranges.emplace_back(entry.begin, entry.end);
  }
  const Instant middle = begin + (end - begin) / 2;
  if (lower < middle) collect_below(2 * node, begin, middle, lower, upper, ranges);
  if (upper > middle + 1) collect_below(2 * node + 1, middle + 1, end, lower, upper, ranges);
}

Units tightest_gap(std::vector<std::pair<Units, Units>>& ranges, Units size) {
  std::sort(ranges.begin(), ranges.end());
  Units best = kUnplaced, best_gap = 0, reached = 0;
  for (const auto& [begin, end] : ranges) {
    const Units gap = begin - reached;
    if (gap >= size && (best == kUnplaced || gap < best_gap)) best = reached, best_gap = gap;
    reached = std::max(reached, end);
  }
  return best == kUnplaced ? reached : best;
}

Offsets place_in_order(const Problem& problem, const std::vector<ItemIndex>& order) {
  PlacedIndex index(problem.num_instants);
  Offsets offsets = unplaced_offsets(problem);
  for (ItemIndex i = problem.num_movable; i < problem.num_items(); ++i) index.add(placed_item(problem, offsets, i));
  std::vector<std::pair<Units, Units>> ranges;
  for (const ItemIndex i : order) {
    const Item& item = problem.item(i);
    ranges.clear();
    index.collect(item.lower, item.upper, ranges);
    const Units offset = tightest_gap(ranges, item.size);
    offsets[static_cast<std::size_t>(i)] = offset;
    index.add(placed_item(problem, offsets, i));
  }
  return offsets;
}

Offsets place_by_size(const Problem& problem) {
  std::vector<ItemIndex> order(static_cast<std::size_t>(problem.num_movable));
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](ItemIndex left, ItemIndex right) {
    const Item& a = problem.items[static_cast<std::size_t>(left)];
    const Item& b = problem.items[static_cast<std::size_t>(right)];
    if (a.size != b.size) return a.size > b.size;
    if (a.upper - a.lower != b.upper - b.lower) return a.upper - a.lower > b.upper - b.lower;
    return left < right;
  });
  return place_in_order(problem, order);
}

}  // namespace stalloc
