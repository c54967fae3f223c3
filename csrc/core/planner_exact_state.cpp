#include "core/planner_exact_state.h"

#include <algorithm>
#include <numeric>
#include <tuple>

namespace stalloc {

ExactState::ExactState(const Problem& problem, Units capacity)
    : problem_(problem), capacity_(capacity), offsets_(problem.items.size(), kUnplaced),
      support_(problem.items.size(), 0), low_(problem.items.size(), 0), signature_(problem.items.size(), 0),
      next_twin_(problem.items.size(), -1), neighbours_(problem.items.size(), problem.items.size()),
      members_(problem.live.size(), problem.items.size()), unplaced_(1, problem.items.size()),
      waiting_(1, problem.items.size()), levels_(problem.items.size()), floor_(problem.live.size(), 0),
      floor_half_(problem.live.size() + kFloorBlock, 0), unplaced_size_(problem.live),
      num_joining_(problem.live.size() + 1, 0), num_unplaced_(problem.live.size(), 0),
      is_touched_(problem.live.size(), 0) {
  find_neighbours();
  find_twins();
  for (ItemIndex i = 0; i < problem.num_items(); ++i) {
    const Item& item = problem.item(i);
    for (Instant s = item.lower; s < item.upper; ++s) ++num_unplaced_[index(s)];
    for (Instant s = item.lower + 1; s < item.upper; ++s) ++num_joining_[index(s)];
    unplaced_.insert(0, i);
    sign(i);
  }
}

// Those that live with an item are those born before it dies without those dead when it is born.
void ExactState::find_neighbours() {
  const std::size_t num_sections = floor_.size(), num_words = members_.num_words();
  ItemSets born(num_sections + 1, offsets_.size()), dead(num_sections + 1, offsets_.size());  // by the start of a section
  for (ItemIndex i = 0; i < problem_.num_items(); ++i) {
    born.insert(index(problem_.item(i).lower) + 1, i);
    dead.insert(index(problem_.item(i).upper), i);
  }
  for (std::size_t s = 0; s < num_sections; ++s) {
    for (std::size_t w = 0; w < num_words; ++w) {
      born.set(s + 1)[w] |= born.set(s)[w];
      dead.set(s + 1)[w] |= dead.set(s)[w];
      members_.set(s)[w] = born.set(s + 1)[w] & ~dead.set(s)[w];
    }
  }
  std::int64_t total = 0;
  for (ItemIndex i = 0; i < problem_.num_items(); ++i) {
    const Word* born_then = born.set(index(problem_.item(i).upper));
    const Word* dead_then = dead.set(index(problem_.item(i).lower));
    Word* neighbours = neighbours_.set(index(i));
    for (std::size_t w = 0; w < num_words; ++w) neighbours[w] = born_then[w] & ~dead_then[w];
    neighbours_.erase(index(i), i);
    for (std::size_t w = 0; w < num_words; ++w) total += __builtin_popcountll(neighbours[w]);
  }
  mean_neighbours_ = total / std::max<std::int64_t>(1, problem_.num_items());
}

void ExactState::find_twins() {
  std::vector<std::tuple<Instant, Instant, Units, ItemIndex>> keyed;
  for (ItemIndex i = 0; i < problem_.num_items(); ++i) {
    const Item& item = problem_.item(i);
    keyed.emplace_back(item.lower, item.upper, item.size, i);
  }
  std::sort(keyed.begin(), keyed.end());
  for (std::size_t k = 1; k < keyed.size(); ++k) {
    const auto& [lower, upper, size, i] = keyed[k];
    const auto& [lower_before, upper_before, size_before, twin] = keyed[k - 1];
    if (lower != lower_before || upper != upper_before || size != size_before) continue;
    next_twin_[index(twin)] = i;
    waiting_.insert(0, i);
  }
}

void ExactState::choices(Instant section, std::vector<ItemIndex>& found) const {
  found.clear();
  const Word* lowest = levels_.find(floor_[index(section)]);
  if (lowest == nullptr) return;
  const Word *members = members_.set(index(section)), *waiting = waiting_.set(0);
  for (std::size_t w = 0; w < members_.num_words(); ++w) {
    for (Word rest = members[w] & lowest[w] & ~waiting[w]; rest != 0; rest &= rest - 1) found.push_back(ItemSets::first(w, rest));
  }
}

int ExactState::num_choices(Instant section) const {
  const Word* lowest = levels_.find(floor_[index(section)]);
  if (lowest == nullptr) return 0;
  const Word *members = members_.set(index(section)), *waiting = waiting_.set(0);
  int count = 0;
  for (std::size_t w = 0; w < members_.num_words(); ++w) {
    for (Word rest = members[w] & lowest[w] & ~waiting[w]; rest != 0; rest &= rest - 1) ++count;
  }
  return count;
}

void ExactState::remove(ItemIndex i) {
  const Item& item = problem_.item(i);
  unplaced_.erase(0, i);
  if (next_twin_[index(i)] >= 0) waiting_.erase(0, next_twin_[index(i)]);
  for (Instant s = item.lower; s < item.upper; ++s) {
    members_.erase(index(s), i);
    --num_unplaced_[index(s)];
    unplaced_size_[index(s)] -= item.size;
    if (s > item.lower) --num_joining_[index(s)];
  }
}

void ExactState::bring_back(ItemIndex i) {
  const Item& item = problem_.item(i);
  unplaced_.insert(0, i);
  if (next_twin_[index(i)] >= 0) waiting_.insert(0, next_twin_[index(i)]);
  for (Instant s = item.lower; s < item.upper; ++s) {
    members_.insert(index(s), i);
    ++num_unplaced_[index(s)];
    unplaced_size_[index(s)] += item.size;
    if (s > item.lower) ++num_joining_[index(s)];
  }
}

void ExactState::set_support(ItemIndex i, Units support) {
  trail_.push_back({Kind::kSupport, i, support_[index(i)]});
  support_[index(i)] = support;
}

void ExactState::move(ItemIndex i, Units low) {
  levels_.move(i, low_[index(i)], low);
  low_[index(i)] = low;
  sign(i);
}

void ExactState::raise_floor(Instant section, Units floor) {
  trail_.push_back({Kind::kFloor, section, floor_[index(section)]});
  set_floor(section, floor);
}

void ExactState::undo(std::size_t mark) {
  for (; trail_.size() > mark; trail_.pop_back()) {
    const Change& change = trail_.back();
    const std::size_t i = index(change.index);
    switch (change.kind) {
      case Kind::kPlaced: offsets_[i] = kUnplaced, bring_back(change.index); break;
      case Kind::kSupport: support_[i] = change.before, sign(change.index); break;
      case Kind::kLow: move(change.index, change.before); break;
      case Kind::kFloor: set_floor(change.index, change.before); break;
      case Kind::kFloating: floating_.pop_back(); break;
    }
  }
}

void ExactState::sign(ItemIndex i) noexcept {
  std::uint64_t z = static_cast<std::uint64_t>(low_[index(i)]) * 2 + (is_floating(i) ? 1 : 0);
  z = (z ^ (z >> 31)) * 0xBF58476D1CE4E5B9ULL + (static_cast<std::uint64_t>(i) + 1) * 0x9E3779B97F4A7C15ULL;
  z = (z ^ (z >> 30)) * 0x94D049BB133111EBULL;
  signature_[index(i)] = z ^ (z >> 29);
}

void ExactState::set_floor(Instant section, Units floor) noexcept {
  floor_[index(section)] = floor;
  floor_half_[index(section)] = static_cast<std::uint32_t>(floor);
}

bool ExactState::raise(ItemIndex i, Units low) {
  if (low <= low_[index(i)]) return true;
  conflict_ = problem_.item(i).lower;
  if (low > capacity_ - problem_.item(i).size) return false;
  leave(i);
  trail_.push_back({Kind::kLow, i, low_[index(i)]});
  move(i, low);
  return true;
}

bool ExactState::place(ItemIndex i) {
  const Units top = low_[index(i)] + problem_.item(i).size;
  trail_.push_back({Kind::kPlaced, i, 0});
  offsets_[index(i)] = low_[index(i)];
  remove(i);
  for (Instant s = problem_.item(i).lower; s < problem_.item(i).upper; ++s) {
    raise_floor(s, top);
    touch_section(s);
  }
  bool fits = true;
  visit_neighbours(i, [&](ItemIndex other) {
    if (support_[index(other)] >= top) return true;
    set_support(other, top);
    low_[index(other)] < top ? void(fits = raise(other, top)) : sign(other);
    return fits;
  });
  return settle(fits);
}

bool ExactState::leave_empty(Instant section) {
  std::vector<std::pair<ItemIndex, Units>> raised;
  const Word *members = members_.set(index(section)), *lowest = levels_.find(floor_[index(section)]);
  for (std::size_t w = 0; lowest != nullptr && w < members_.num_words(); ++w) {
    for (Word rest = members[w] & lowest[w]; rest != 0; rest &= rest - 1) {
      const ItemIndex i = ItemSets::first(w, rest);
      raised.emplace_back(i, lowest_support_beside(i, section));
    }
  }
  bool fits = true;
  for (const auto& [i, low] : raised) {
    if (!is_floating(i)) {
      floating_.push_back(i);
      trail_.push_back({Kind::kFloating, i, 0});
    }
    fits = fits && raise(i, low);
  }
  return settle(fits);
}

// An item that does not lie on the floor of a section lies on another item, though not on one that could
// only be on that floor itself.
Units ExactState::lowest_support_beside(ItemIndex i, Instant section) {
  Units lowest = kNever;
  visit_neighbours(i, [&](ItemIndex other) {
    const Item& item = problem_.item(other);
    const bool lives_then = item.lower <= section && section < item.upper;
    if (!lives_then || low_[index(other)] != floor_[index(section)]) lowest = std::min(lowest, low_[index(other)] + item.size);
    return true;
  });
  return lowest;
}

}  // namespace stalloc
