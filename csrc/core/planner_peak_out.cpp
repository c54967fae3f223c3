#include "core/planner_peak_out.h"

#include <algorithm>

#include "core/planner_best_fit.h"
#include "core/planner_random.h"
#include "core/planner_walk.h"

namespace stalloc {
namespace {

// Ascending keys stack from the bottom.
float stack_key(const Item& item, Instant peak, const PeakOutStyle& style) {
  const float until_death = rough_log2(1.0F + static_cast<float>(item.upper - peak));
  const float since_birth = rough_log2(1.0F + static_cast<float>(peak - item.lower));
  if (style.two_ended && until_death < since_birth) return until_death - 1000.0F;
  return -style.death_weight * until_death - (1.0F - style.death_weight) * since_birth;
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

std::vector<ItemIndex> PeakOut::stack_order(const PeakOutStyle& style) const {
  Random random(style.seed);
  std::vector<std::pair<float, ItemIndex>> keyed;
  for (const ItemIndex i : at_peak_) {
    if (problem_.is_fixed(i)) continue;
    const float noise = style.noise * 4 * static_cast<float>(random.uniform());
    keyed.emplace_back(stack_key(problem_.item(i), peak_, style) + noise, i);
  }
  std::sort(keyed.begin(), keyed.end());
  std::vector<ItemIndex> order;
  for (const auto& entry : keyed) order.push_back(entry.second);
  return order;
}

void PeakOut::stack_peak(Offsets& offsets, Units capacity, const PeakOutStyle& style) const {
  const std::vector<ItemIndex> movable = stack_order(style);
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
  stack_peak(offsets, capacity, style);
  Walk(problem_, {false, problem_.num_instants}, capacity, style, offsets).run(at_peak_, after_peak_);
  Walk(problem_, {true, problem_.num_instants}, capacity, style, offsets).run(at_peak_, before_peak_);
  return offsets;
}

}  // namespace stalloc
