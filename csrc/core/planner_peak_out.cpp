#include "core/planner_peak_out.h"

#include <algorithm>
#include <numeric>

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
  by_birth_ = in_order_of_birth({false, problem.num_instants});
  by_death_ = in_order_of_birth({true, problem.num_instants});
}

std::vector<ItemIndex> PeakOut::in_order_of_birth(TimeDirection direction) const {
  std::vector<ItemIndex> order(problem_.items.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](ItemIndex left, ItemIndex right) {
    const Item &a = problem_.item(left), &b = problem_.item(right);
    if (direction.birth(a) != direction.birth(b)) return direction.birth(a) < direction.birth(b);
    if (problem_.is_fixed(left) != problem_.is_fixed(right)) return problem_.is_fixed(left);
    return a.size != b.size ? a.size > b.size : left < right;
  });
  return order;
}

std::vector<ItemIndex> PeakOut::alive_at(Instant pivot) const {
  std::vector<ItemIndex> alive;
  for (ItemIndex i = 0; i < problem_.num_items(); ++i) {
    if (problem_.item(i).lower <= pivot && pivot < problem_.item(i).upper) alive.push_back(i);
  }
  return alive;
}

std::vector<ItemIndex> PeakOut::ahead_of(Instant pivot, TimeDirection direction) const {
  const std::vector<ItemIndex>& order = direction.backward ? by_death_ : by_birth_;
  const Instant now = direction.backward ? problem_.num_instants - 1 - pivot : pivot;
  const auto first = std::upper_bound(order.begin(), order.end(), now, [&](Instant instant, ItemIndex i) {
    return instant < direction.birth(problem_.item(i));
  });
  return {first, order.end()};
}

std::vector<ItemIndex> PeakOut::stack_order(const std::vector<ItemIndex>& alive, Instant pivot,
                                            const PeakOutStyle& style) const {
  Random random(style.seed);
  std::vector<std::pair<float, ItemIndex>> keyed;
  for (const ItemIndex i : alive) {
    if (problem_.is_fixed(i)) continue;
    const float noise = style.noise * 4 * static_cast<float>(random.uniform());
    keyed.emplace_back(stack_key(problem_.item(i), pivot, style) + noise, i);
  }
  std::sort(keyed.begin(), keyed.end());
  std::vector<ItemIndex> order;
  for (const auto& entry : keyed) order.push_back(entry.second);
  return order;
}

void PeakOut::stack(Offsets& offsets, const std::vector<ItemIndex>& movable, Units capacity) const {
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
  const Instant pivot = style.pivot < 0 ? peak_ : style.pivot;
  const std::vector<ItemIndex> alive = alive_at(pivot);
  stack(offsets, stack_order(alive, pivot, style), capacity);
  const TimeDirection forward{false, problem_.num_instants}, backward{true, problem_.num_instants};
  Walk(problem_, forward, capacity, style, offsets).run(alive, ahead_of(pivot, forward));
  Walk(problem_, backward, capacity, style, offsets).run(alive, ahead_of(pivot, backward));
  return offsets;
}

}  // namespace stalloc
