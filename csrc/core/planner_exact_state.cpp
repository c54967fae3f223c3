#include "core/planner_exact_state.h"

#include <algorithm>
#include <numeric>
#include <tuple>

namespace stalloc {
namespace {

constexpr Units kNotCounted = -1;
constexpr Instant kBlock = 16;  // of sections whose floors are compared at once

}  // namespace

ExactState::ExactState(const Problem& problem, Units capacity)
    : problem_(problem), capacity_(capacity), offsets_(problem.items.size(), kUnplaced),
      support_(problem.items.size(), 0), low_(problem.items.size(), 0), signature_(problem.items.size(), 0),
      twin_(problem.items.size(), -1), floor_(problem.live.size(), 0),
      floor_half_(problem.live.size() + kBlock, 0), unplaced_size_(problem.live),
      num_choices_(problem.live.size(), kNotCounted), num_joining_(problem.live.size() + 1, 0),
      is_touched_(problem.live.size(), 0) {
  list_members();
  list_neighbours();
  find_twins();
  for (ItemIndex i = 0; i < problem.num_items(); ++i) {
    sign(i);
    touch(i);
  }
  settle_floors();
  trail_.clear();
}

void ExactState::list_members() {
  num_members_.assign(floor_.size(), 0);
  for (const Item& item : problem_.items) {
    for (Instant s = item.lower; s < item.upper; ++s) ++num_members_[index(s)];
    for (Instant s = item.lower + 1; s < item.upper; ++s) ++num_joining_[index(s)];
  }
  members_begin_.assign(floor_.size() + 1, 0);
  for (std::size_t s = 0; s < floor_.size(); ++s) {
    members_begin_[s + 1] = members_begin_[s] + static_cast<std::size_t>(num_members_[s]);
  }
  members_.resize(members_begin_.back());
  std::vector<std::size_t> next(members_begin_.begin(), members_begin_.end());
  for (ItemIndex i = 0; i < problem_.num_items(); ++i) {
    entry_begin_.push_back(entry_.size());
    for (Instant s = problem_.item(i).lower; s < problem_.item(i).upper; ++s) {
      members_[next[index(s)]] = i;
      entry_.push_back(next[index(s)]++);
    }
  }
}

void ExactState::list_neighbours() {
  std::vector<ItemIndex> by_birth(problem_.items.size());
  std::iota(by_birth.begin(), by_birth.end(), 0);
  std::sort(by_birth.begin(), by_birth.end(), [&](ItemIndex a, ItemIndex b) {
    return std::make_pair(problem_.item(a).lower, a) < std::make_pair(problem_.item(b).lower, b);
  });
  neighbours_begin_.push_back(0);
  for (ItemIndex i = 0; i < problem_.num_items(); ++i) {
    const Item& item = problem_.item(i);
    for (const ItemIndex other : by_birth) {
      if (problem_.item(other).lower >= item.upper) break;
      if (other != i && problem_.item(other).upper > item.lower) neighbours_.push_back(other);
    }
    neighbours_begin_.push_back(neighbours_.size());
  }
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
    if (lower == lower_before && upper == upper_before && size == size_before) twin_[index(i)] = twin;
  }
}

void ExactState::choices(Instant section, std::vector<ItemIndex>& found) const {
  found.clear();
  const std::size_t begin = members_begin_[index(section)];
  for (std::size_t k = begin; k < begin + index(num_members_[index(section)]); ++k) {
    const ItemIndex i = members_[k];
    if (low_[index(i)] == floor_[index(section)] && !waits_for_twin(i)) found.push_back(i);
  }
}

Units ExactState::num_choices(Instant section) {
  Units& count = num_choices_[index(section)];
  if (count != kNotCounted) return count;
  count = 0;
  const Units floor = floor_[index(section)];
  const Units* low = low_.data();
  const ItemIndex* member = members_.data() + members_begin_[index(section)];
  for (const ItemIndex* end = member + num_members_[index(section)]; member != end; ++member) {
    if (low[*member] == floor && !waits_for_twin(*member)) ++count;
  }
  return count;
}

// The last of those still to be placed takes its entry; it moves behind them.
void ExactState::remove(ItemIndex i) {
  const Item& item = problem_.item(i);
  std::size_t entry = entry_begin_[index(i)];
  for (Instant s = item.lower; s < item.upper; ++s, ++entry) {
    const std::size_t last = members_begin_[index(s)] + index(--num_members_[index(s)]);
    const ItemIndex other = members_[last];
    const std::size_t other_entry = entry_begin_[index(other)] + index(s - problem_.item(other).lower);
    std::swap(members_[entry_[entry]], members_[last]);
    std::swap(entry_[entry], entry_[other_entry]);
    unplaced_size_[index(s)] -= item.size;
    if (s > item.lower) --num_joining_[index(s)];
  }
}

// In the reverse order of remove(), so that it still lies just behind those to be placed.
void ExactState::bring_back(ItemIndex i) {
  const Item& item = problem_.item(i);
  for (Instant s = item.lower; s < item.upper; ++s) {
    ++num_members_[index(s)];
    unplaced_size_[index(s)] += item.size;
    if (s > item.lower) ++num_joining_[index(s)];
  }
}

void ExactState::set(Kind kind, std::int32_t i, Units value) {
  std::vector<Units>& values = kind == Kind::kSupport ? support_
                               : kind == Kind::kLow   ? low_
                                                      : num_choices_;
  trail_.push_back({kind, i, values[index(i)]});
  values[index(i)] = value;
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
      case Kind::kLow: low_[i] = change.before, sign(change.index); break;
      case Kind::kFloor: set_floor(change.index, change.before); break;
      case Kind::kNumChoices: num_choices_[i] = change.before; break;
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

// Only where the item is among the lowest does the floor depend on it. Those sections are few: whole blocks without
// any are passed over by the low halves of their floors, four of which a vector register compares at once.
void ExactState::touch(ItemIndex i) {
  const Units low = low_[index(i)];
  const auto low_half = static_cast<std::uint32_t>(low);
  const Instant upper = problem_.item(i).upper;
  for (Instant s = problem_.item(i).lower; s < upper; s += kBlock) {
    const std::uint32_t* halves = floor_half_.data() + s;
    std::uint32_t num_equal = 0;
    for (Instant k = 0; k < kBlock; ++k) num_equal += halves[k] == low_half ? 1U : 0U;
    if (num_equal == 0) continue;
    for (Instant t = s, end = std::min(s + kBlock, upper); t < end; ++t) {
      if (floor_half_[index(t)] == low_half && floor_[index(t)] == low) touch_section(t);
    }
  }
}

void ExactState::touch_section(Instant section) {
  if (is_touched_[index(section)]) return;
  is_touched_[index(section)] = 1;
  touched_.push_back(section);
}

void ExactState::set_floor(Instant section, Units floor) noexcept {
  floor_[index(section)] = floor;
  floor_half_[index(section)] = static_cast<std::uint32_t>(floor);
}

bool ExactState::raise(ItemIndex i, Units low) {
  if (low <= low_[index(i)]) return true;
  conflict_ = problem_.item(i).lower;
  if (low > capacity_ - problem_.item(i).size) return false;
  touch(i);
  set(Kind::kLow, i, low);
  sign(i);
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
  for (std::size_t k = neighbours_begin_[index(i)]; fits && k < neighbours_begin_[index(i) + 1]; ++k) {
    ++num_looks_;
    const ItemIndex other = neighbours_[k];
    if (is_placed(other) || support_[index(other)] >= top) continue;
    set(Kind::kSupport, other, top);
    fits = raise(other, top);
    sign(other);
  }
  return settle(fits);
}

bool ExactState::leave_empty(Instant section) {
  std::vector<std::pair<ItemIndex, Units>> raised;
  const std::size_t begin = members_begin_[index(section)];
  for (std::size_t k = begin; k < begin + index(num_members_[index(section)]); ++k) {
    const ItemIndex i = members_[k];
    if (low_[index(i)] == floor_[index(section)]) raised.emplace_back(i, lowest_support_beside(i, section));
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
  for (std::size_t k = neighbours_begin_[index(i)]; k < neighbours_begin_[index(i) + 1]; ++k) {
    ++num_looks_;
    const ItemIndex other = neighbours_[k];
    if (is_placed(other)) continue;
    const Item& item = problem_.item(other);
    const bool lives_then = item.lower <= section && section < item.upper;
    if (lives_then && low_[index(other)] == floor_[index(section)]) continue;
    lowest = std::min(lowest, low_[index(other)] + item.size);
  }
  return lowest;
}

// As far as `i` can lie on items that do not float; no lower than it has to be anyway.
Units ExactState::lowest_firm_place(ItemIndex i) {
  Units lowest = kNever;
  for (std::size_t k = neighbours_begin_[index(i)]; k < neighbours_begin_[index(i) + 1]; ++k) {
    ++num_looks_;
    const ItemIndex other = neighbours_[k];
    if (is_placed(other) || is_floating(other)) continue;
    lowest = std::min(lowest, low_[index(other)] + problem_.item(other).size);
    if (lowest <= low_[index(i)]) return low_[index(i)];
  }
  return lowest;
}

bool ExactState::settle(bool fits) {
  fits = fits && settle_floors() && settle_floating() && settle_floors();
  for (const Instant s : touched_) is_touched_[index(s)] = 0;
  touched_.clear();
  return fits;
}

// A floating item needs something still to be placed to lie on, and what floats itself cannot hold what it lies
// on: the lowest place of each is found from the lowest up, as shortest paths are.
bool ExactState::settle_floating() {
  afloat_.clear();
  for (const ItemIndex i : floating_) {
    if (!is_placed(i) && is_floating(i)) afloat_.emplace_back(lowest_firm_place(i), i);
  }
  for (auto next = afloat_.begin(); next != afloat_.end(); ++next) {
    std::iter_swap(next, std::min_element(next, afloat_.end()));
    if (next->first == kNever || !raise(next->second, next->first)) return false;
    const Item& item = problem_.item(next->second);
    const Units top = next->first + item.size;
    for (auto later = next + 1; later != afloat_.end(); ++later) {
      const Item& other = problem_.item(later->second);
      if (other.lower >= item.upper || item.lower >= other.upper) continue;
      later->first = std::min(later->first, std::max(top, low_[index(later->second)]));
    }
  }
  return true;
}

bool ExactState::settle_floors() {
  for (; !touched_.empty(); touched_.pop_back()) {
    if (!settle_floor(touched_.back())) return false;
    is_touched_[index(touched_.back())] = 0;
  }
  return true;
}

bool ExactState::settle_floor(Instant section) {
  set(Kind::kNumChoices, section, kNotCounted);
  Units floor = kNever;
  const Units floor_before = floor_[index(section)];
  const Units* low = low_.data();
  const ItemIndex* member = members_.data() + members_begin_[index(section)];
  for (const ItemIndex* end = member + num_members_[index(section)]; member != end && floor > floor_before; ++member) {
    floor = std::min(floor, low[*member]);
  }
  if (floor == kNever) return true;  // nothing is left to place
  if (floor > floor_before) raise_floor(section, floor);
  if (slack(section) >= 0) return true;
  conflict_ = section;
  return false;
}

}  // namespace stalloc
