// What follows from a change of an exact search's state: floors that rise, and floating items that are held higher.
#include <algorithm>

#include "core/planner_exact_state.h"

namespace stalloc {

// Only where the item was among the lowest does the floor depend on it. Of many items that rise few lay at different
// offsets, so that one look at the time of all that lay at the same one does.
void ExactState::leave(ItemIndex i) {
  const Item& item = problem_.item(i);
  const Units low = low_[index(i)];
  for (Level& level : left_) {
    if (level.low != low) continue;
    level.lower = std::min(level.lower, item.lower);
    level.upper = std::max(level.upper, item.upper);
    return;
  }
  left_.push_back({low, item.lower, item.upper});
}

// Sections with such a floor are few: whole blocks without any are passed over by the low halves of their floors, four
// of which a vector register compares at once.
void ExactState::touch(const Level& level) {
  const auto low_half = static_cast<std::uint32_t>(level.low);
  for (Instant s = level.lower; s < level.upper; s += kFloorBlock) {
    const std::uint32_t* halves = floor_half_.data() + s;
    std::uint32_t num_equal = 0;
    for (Instant k = 0; k < kFloorBlock; ++k) num_equal += halves[k] == low_half ? 1U : 0U;
    if (num_equal == 0) continue;
    for (Instant t = s, end = std::min(s + kFloorBlock, level.upper); t < end; ++t) {
      if (floor_half_[index(t)] == low_half && floor_[index(t)] == level.low) touch_section(t);
    }
  }
}

void ExactState::touch_section(Instant section) {
  if (is_touched_[index(section)]) return;
  is_touched_[index(section)] = 1;
  touched_.push_back(section);
}

// As far as `i` can lie on items that do not float; no lower than it has to be anyway.
Units ExactState::lowest_firm_place(ItemIndex i) {
  Units lowest = kNever;
  visit_neighbours(i, [&](ItemIndex other) {
    if (!is_floating(other)) lowest = std::min(lowest, low_[index(other)] + problem_.item(other).size);
    return lowest > low_[index(i)];
  });
  return std::max(lowest, low_[index(i)]);
}

bool ExactState::settle(bool fits) {
  fits = fits && settle_floors() && settle_floating() && settle_floors();
  for (const Instant s : touched_) is_touched_[index(s)] = 0;
  touched_.clear();
  left_.clear();
  return fits;
}

// A floating item needs something still to be placed to lie on, and what floats itself cannot hold what it lies
// on: the lowest place of each is found from the lowest up, as shortest paths are. Most are held where they float; they
// need no place of their own, and may hold others.
bool ExactState::settle_floating() {
  held_.clear();
  afloat_.clear();
  for (const ItemIndex i : floating_) {
    if (is_placed(i) || !is_floating(i)) continue;
    const Units lowest = lowest_firm_place(i);
    if (lowest == low_[index(i)]) {
      held_.push_back(i);
    } else {
      afloat_.emplace_back(lowest, i);
    }
  }
  for (auto& [lowest, i] : afloat_) {
    for (const ItemIndex other : held_) lower_onto(lowest, i, low_[index(other)], other);
  }
  for (auto next = afloat_.begin(); next != afloat_.end(); ++next) {
    std::iter_swap(next, std::min_element(next, afloat_.end()));
    if (next->first == kNever || !raise(next->second, next->first)) return false;
    for (auto later = next + 1; later != afloat_.end(); ++later) {
      lower_onto(later->first, later->second, next->first, next->second);
    }
  }
  return true;
}

// `i` may lie on the other, if they live at one time.
void ExactState::lower_onto(Units& lowest, ItemIndex i, Units other_low, ItemIndex other) const {
  const Units top = other_low + problem_.item(other).size;
  if (top >= lowest) return;
  if (problem_.item(other).lower >= problem_.item(i).upper || problem_.item(i).lower >= problem_.item(other).upper) return;
  lowest = std::max(top, low_[index(i)]);
}

bool ExactState::settle_floors() {
  for (const Level& level : left_) touch(level);
  left_.clear();
  for (; !touched_.empty(); touched_.pop_back()) {
    if (!settle_floor(touched_.back())) return false;
    is_touched_[index(touched_.back())] = 0;
  }
  return true;
}

bool ExactState::settle_floor(Instant section) {
  if (num_unplaced_[index(section)] == 0) return true;
  const Units floor = lowest_of(section);
  if (floor > floor_[index(section)]) raise_floor(section, floor);
  if (slack(section) >= 0) return true;
  conflict_ = section;
  return false;
}

// Of those still to be placed there; mostly the floor is still right.
Units ExactState::lowest_of(Instant section) const {
  const Word *members = members_.set(index(section)), *lowest = levels_.find(floor_[index(section)]);
  const std::size_t num_words = members_.num_words();
  for (std::size_t w = 0; lowest != nullptr && w < num_words; ++w) {
    if ((members[w] & lowest[w]) != 0) return floor_[index(section)];
  }
  Units floor = kNever;
  for (std::size_t w = 0; w < num_words; ++w) {
    for (Word rest = members[w]; rest != 0; rest &= rest - 1) floor = std::min(floor, low_[index(ItemSets::first(w, rest))]);
  }
  return floor;
}

}  // namespace stalloc
