#include "runtime/gap_finder.h"

#include <algorithm>

namespace stalloc {
namespace {

constexpr std::size_t kMaxNeeded = 16384;  // slots looked at for one request; those born later are passed over

}  // namespace

GapFinder::GapFinder(const Plan& plan)
    : window_begin_(plan.window_begin), window_end_(plan.window_end), births_(static_cast<std::size_t>(plan.num_roles)) {
  for (const Slot& slot : plan.slots)
    if (slot.kind != SlotKind::kUnplanned)
      births_[static_cast<std::size_t>(plan.space_of(slot.role))].push_back({slot.birth, slot.offset, slot.size});
  for (auto& births : births_)
    std::sort(births.begin(), births.end(), [](const Birth& a, const Birth& b) { return a.tick < b.tick; });
  needed_.reserve(kMaxNeeded);
}

void GapFinder::collect(const std::vector<Birth>& births, Bytes begin, Tick after, Tick before) noexcept {
  auto at = std::upper_bound(births.begin(), births.end(), after, [](Tick tick, const Birth& b) { return tick < b.tick; });
  for (; at != births.end() && at->tick < before && needed_.size() < kMaxNeeded; ++at)
    needed_.push_back({at->offset - begin, at->offset - begin + at->size});
}

Bytes GapFinder::find(const BlockMap& map, RoleIndex space, Bytes extent_begin, Bytes size, Tick now,
                      Tick until) noexcept {
  const auto& births = births_[static_cast<std::size_t>(space)];
  needed_.clear();
  collect(births, extent_begin, now, until);
  if (until > window_end_) collect(births, extent_begin, window_begin_ - 1, std::min(window_begin_ + (until - window_end_), now));
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
    for (; next < needed_.size() && needed_[next].begin < end; ++next) {
      consider(free_from, needed_[next].begin);
      needed_until = std::max(needed_until, needed_[next].end);
      free_from = std::max(free_from, needed_until);
    }
    consider(free_from, end);
  }
  return best.begin;
}

}  // namespace stalloc
