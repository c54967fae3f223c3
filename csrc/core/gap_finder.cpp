#include "core/gap_finder.h"

#include <algorithm>

namespace stalloc {
namespace {

constexpr std::size_t kMaxNeeded = 65536;  // ranges looked at for one request; more are passed over

}  // namespace

GapFinder::GapFinder(const Plan& plan) : window_begin_(plan.window_begin), window_end_(plan.window_end) {
  for (RoleIndex space = 0; space < plan.num_roles; ++space) {
    needs_.push_back(needs_of(plan, space));
    while (needs_.back().levels.empty() || needs_.back().levels.back().node_begin.size() > 2) add_level(needs_.back());
  }
  needed_.reserve(kMaxNeeded);
}

GapFinder::Needs GapFinder::needs_of(const Plan& plan, RoleIndex space) {
  std::vector<const Slot*> slots;
  for (const Slot& slot : plan.slots)
    if (plan.space_of(slot.role) == space && slot.kind != SlotKind::kUnplanned && slot.kind != SlotKind::kRoom) slots.push_back(&slot);
  std::sort(slots.begin(), slots.end(), [](const Slot* a, const Slot* b) { return a->birth < b->birth; });
  Needs needs;
  for (const Slot* slot : slots) {
    needs.births.push_back(slot->birth);
    needs.slots.push_back({slot->offset, slot->offset + slot->size});
  }
  return needs;
}

// Merges the nodes below two by two; the lowest level merges slots.
void GapFinder::add_level(Needs& needs) {
  Needs::Level level;
  level.node_begin.push_back(0);
  const auto merge = [&](std::vector<Range> ranges) {
    std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) { return a.begin < b.begin; });
    const std::size_t first = level.ranges.size();
    for (const Range& range : ranges) {
      if (level.ranges.size() > first && range.begin <= level.ranges.back().end) level.ranges.back().end = std::max(level.ranges.back().end, range.end);
      else level.ranges.push_back(range);
    }
    level.node_begin.push_back(level.ranges.size());
  };
  const auto at = [](const std::vector<Range>& ranges, std::size_t index) { return ranges.begin() + static_cast<std::ptrdiff_t>(index); };
  if (needs.levels.empty()) {
    for (std::size_t first = 0; first < needs.slots.size(); first += kLeaf)
      merge({at(needs.slots, first), at(needs.slots, std::min(first + kLeaf, needs.slots.size()))});
  } else {
    const Needs::Level& below = needs.levels.back();
    for (std::size_t node = 0; node + 1 < below.node_begin.size(); node += 2)
      merge({at(below.ranges, below.node_begin[node]),
             at(below.ranges, below.node_begin[std::min(node + 2, below.node_begin.size() - 1)])});
  }
  needs.levels.push_back(std::move(level));
}

void GapFinder::take(const Range* first, const Range* last) noexcept {
  for (; first != last && needed_.size() < kMaxNeeded; ++first) needed_.push_back(*first);
}

void GapFinder::collect(const Needs& needs, Tick after, Tick before) noexcept {
  auto first = static_cast<std::size_t>(std::upper_bound(needs.births.begin(), needs.births.end(), after) - needs.births.begin());
  const auto last = static_cast<std::size_t>(std::lower_bound(needs.births.begin(), needs.births.end(), before) - needs.births.begin());
  while (first < last) {
    if (first % kLeaf != 0 || first + kLeaf > last) {
      const std::size_t end = std::min(last, (first / kLeaf + 1) * kLeaf);
      take(needs.slots.data() + first, needs.slots.data() + end);
      first = end;
      continue;
    }
    std::size_t level = 0;  // the highest whose node begins here and ends in time
    std::size_t node = first / kLeaf;
    while (node % 2 == 0 && level + 1 < needs.levels.size() && first + (kLeaf << (level + 1)) <= last) {
      node /= 2;
      ++level;
    }
    const Needs::Level& nodes = needs.levels[level];
    take(nodes.ranges.data() + nodes.node_begin[node], nodes.ranges.data() + nodes.node_begin[node + 1]);
    first += kLeaf << level;
  }
}

Bytes GapFinder::find(const BlockMap& map, RoleIndex space, Bytes extent_begin, Bytes size, Tick now,
                      Tick until) noexcept {
  const Needs& needs = needs_[static_cast<std::size_t>(space)];
  needed_.clear();
  collect(needs, now, until);
  if (until > window_end_) collect(needs, window_begin_ - 1, std::min(window_begin_ + (until - window_end_), now));
  std::sort(needed_.begin(), needed_.end(), [](const Range& a, const Range& b) { return a.begin < b.begin; });
  Range best{kUnplaced, kUnplaced};
  const auto consider = [&](Bytes begin, Bytes end) {
    if (end - begin >= size && (best.begin == kUnplaced || end - begin < best.end - best.begin)) best = {begin, end};
  };
  std::size_t next = 0;
  Bytes needed_until = 0;  // the furthest end of the ranges passed so far
  for (auto block = map.first(); block != BlockMap::kNoBlock; block = map.next(block)) {
    if (map.block(block).used) continue;
    const Bytes begin = map.offset_of(block);
    const Bytes end = begin + map.size_of(block);
    if (end - begin < size) continue;
    Bytes free_from = std::max(begin, needed_until);
    for (; next < needed_.size() && needed_[next].begin - extent_begin < end; ++next) {
      consider(free_from, needed_[next].begin - extent_begin);
      needed_until = std::max(needed_until, needed_[next].end - extent_begin);
      free_from = std::max(free_from, needed_until);
    }
    consider(free_from, end);
  }
  return best.begin;
}

}  // namespace stalloc
