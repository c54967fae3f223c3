#include "core/planner_timeline.h"

#include <algorithm>

namespace stalloc {

Timeline::Timeline(const Problem& problem) : problem_(problem) {
  const std::size_t num_items = problem.items.size(), num_instants = static_cast<std::size_t>(problem.num_instants);
  born_before_.assign(num_instants + 1, 0);
  std::size_t alive_instants = 0;
  for (const Item& item : problem.items) {
    ++born_before_[static_cast<std::size_t>(item.lower) + 1];
    alive_instants += static_cast<std::size_t>(item.upper - item.lower);
  }
  for (std::size_t t = 1; t <= num_instants; ++t) born_before_[t] += born_before_[t - 1];
  by_birth_.resize(num_items);
  std::vector<std::size_t> next(born_before_.begin(), born_before_.end());
  for (ItemIndex i = 0; i < problem.num_items(); ++i) {
    by_birth_[next[static_cast<std::size_t>(problem.item(i).lower)]++] = i;
  }
  spacing_ = static_cast<Instant>(std::max<std::size_t>(1, alive_instants / std::max<std::size_t>(1, 2 * num_items)));
  std::vector<ItemIndex> alive;
  std::size_t born = 0;
  checkpoint_begin_.push_back(0);
  for (Instant t = 0; t < problem.num_instants; t += spacing_) {
    for (; born < born_before(t); ++born) alive.push_back(by_birth_[born]);
    alive.erase(std::remove_if(alive.begin(), alive.end(), [&](ItemIndex i) { return problem.item(i).upper <= t; }),
                alive.end());
    alive_.insert(alive_.end(), alive.begin(), alive.end());
    checkpoint_begin_.push_back(alive_.size());
  }
}

}  // namespace stalloc
