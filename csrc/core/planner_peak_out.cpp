#include "core/planner_peak_out.h"

#include <algorithm>

#include "core/planner_best_fit.h"
#include "core/planner_walk.h"

namespace stalloc {
namespace {

// Ascending keys stack from the bottom.
Instant stack_key(const Item& item, Instant peak, StackOrder order) {
  switch (order) {
    case StackOrder::kLastDeathFirst: return -item.upper;
    case StackOrder::kFirstBirthFirst: return item.lower;
    case StackOrder::kLongestFirst: return item.lower - item.upper;
    case StackOrder::kFarthestFromPeakFirst: return -std::min(item.upper - peak, peak - item.lower);
  }
  return 0;
}

}  // namespace

PeakOut::PeakOut(const Problem& problem) : problem_(problem) {
  const auto peak = std::max_element(problem.live.begin(), problem.live.end());
  peak_ = static_cast<Instant>(peak - problem.live.begin());
  for (ItemIndex i = 0; i < problem.num_items(); ++i) {
    if (problem.item(i).lower <= peak_ && peak_ < problem.item(i).upper) at_peak_.push_back(i);
  }
  after_peak_ = ahead_of_peak({false, problem.num_instants});
  before_peak_ = ahead_of_peak({true, problem.num_instants});
}

std::vector<ItemIndex> PeakOut::ahead_of_peak(TimeDirection direction) const {
  const Instant peak = direction.backward ? problem_.num_instants - 1 - peak_ : peak_;
  std::vector<ItemIndex> ahead;
  for (ItemIndex i = 0; i < problem_.num_items(); ++i) {
    if (direction.birth(problem_.item(i)) > peak) ahead.push_back(i);
  }
  std::sort(ahead.begin(), ahead.end(), [&](ItemIndex left, ItemIndex right) {
    const Item &a = problem_.item(left), &b = problem_.item(right);
    if (direction.birth(a) != direction.birth(b)) return direction.birth(a) < direction.birth(b);
    if (problem_.is_fixed(left) != problem_.is_fixed(right)) return problem_.is_fixed(left);
    return a.size != b.size ? a.size > b.size : left < right;
  });
  return ahead;
}

void PeakOut::stack_peak(Offsets& offsets, Units capacity, StackOrder order) const {
  std::vector<ItemIndex> movable;
  for (const ItemIndex i : at_peak_) {
    if (!problem_.is_fixed(i)) movable.push_back(i);
  }
  std::sort(movable.begin(), movable.end(), [&](ItemIndex a, ItemIndex b) {
    const Instant key_a = stack_key(problem_.item(a), peak_, order), key_b = stack_key(problem_.item(b), peak_, order);
    return key_a != key_b ? key_a < key_b : a < b;
  });
  if (problem_.fixed_offsets.empty()) {
    Units reached = 0;
    for (const ItemIndex i : movable) {
      if (reached + problem_.item(i).size > capacity) continue;
      offsets[static_cast<std::size_t>(i)] = reached;
      reached += problem_.item(i).size;
    }
    return;
  }
  // Fixed items that come or go while the stack lives are in the way too: each takes the lowest free place.
  PlacedIndex index(problem_, offsets);
  for (const ItemIndex i : movable) {
    const Units offset = index.lowest_place(problem_.item(i));
    if (offset + problem_.item(i).size > capacity) continue;
    offsets[static_cast<std::size_t>(i)] = offset;
    index.add(i, offset);
  }
}

Offsets PeakOut::place(Units capacity, const PeakOutStyle& style) const {
  Offsets offsets = unplaced_offsets(problem_);
  stack_peak(offsets, capacity, style.order);
  Walk(problem_, {false, problem_.num_instants}, capacity, style, offsets).run(at_peak_, after_peak_);
  Walk(problem_, {true, problem_.num_instants}, capacity, style, offsets).run(at_peak_, before_peak_);
  return offsets;
}

}  // namespace stalloc
