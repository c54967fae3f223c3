#include "core/gap_finder.h"

#include <algorithm>
#include <utility>

namespace stalloc {
namespace {

constexpr Bytes kLargeShare = 16;  // of the plan: what a slot holds that is large, such as a loss's logits
constexpr std::size_t kMaxNeeded = 65536;  // ranges looked at for one request; more are passed over

// The first birth after `tick`; those before index `from` are known not to be.
std::size_t first_after(const std::vector<Tick>& births, std::size_t from, Tick tick) noexcept {
  std::size_t step = 1;
  while (from + step <= births.size() && births[from + step - 1] <= tick) {
    from += step;
    step *= 2;
  }
  const auto begin = births.begin() + static_cast<std::ptrdiff_t>(from);
  const auto end = births.begin() + static_cast<std::ptrdiff_t>(std::min(from + step, births.size()));
  return static_cast<std::size_t>(std::upper_bound(begin, end, tick) - births.begin());
}

}  // namespace

GapFinder::GapFinder(const Plan& plan) : window_begin_(plan.window_begin), window_end_(plan.window_end) {
  std::size_t most = 0;
  for (RoleIndex space = 0; space < plan.num_roles; ++space) {
    needs_.push_back(needs_of(plan, space, false));
    spared_.push_back(needs_of(plan, space, true));
    most = std::max(most, needs_.back().slots.size() + spared_.back().slots.size());
  }
  needed_.resize(std::min(2 * most, kMaxNeeded));  // of this turn and the next
  merged_.resize(needed_.size());
}

// All slots, or those that are spared: large ones while they are still to come, and what the first steps leave for ever,
// which is still to come whenever its place is free.
GapFinder::Needs GapFinder::needs_of(const Plan& plan, RoleIndex space, bool spared) {
  std::vector<std::pair<Tick, Range>> slots;
  const Bytes large = plan.total_arena_bytes() / kLargeShare;
  for (const Slot& slot : plan.slots) {
    const bool lasts = slot.kind == SlotKind::kPersistent;
    if (plan.space_of(slot.role) != space || slot.kind == SlotKind::kUnplanned || slot.kind == SlotKind::kRoom) continue;
    if (spared && !lasts && slot.size < large) continue;
    slots.push_back({spared && lasts ? plan.window_end - 1 : slot.birth, {slot.offset, slot.offset + slot.size}});
  }
  std::sort(slots.begin(), slots.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  Needs needs;
  for (const auto& [birth, range] : slots) {
    needs.births.push_back(birth);
    needs.slots.push_back(range);
  }
  while (needs.levels.empty() || needs.levels.back().node_begin.size() > 2) add_level(needs);
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

// A sorted list, without its holes that cannot hold `size` bytes.
void GapFinder::add_run(const Range* first, const Range* last, Bytes size) noexcept {
  Range* const begin = needed_.data() + run_begin_[num_runs_];
  Range* out = begin;
  const Range* const end = needed_.data() + needed_.size();
  if (num_runs_ == kMaxRuns) return;
  for (; first != last; ++first) {
    if (out != begin && first->begin - out[-1].end < size) out[-1].end = std::max(out[-1].end, first->end);
    else if (out != end) *out++ = *first;
  }
  if (out != begin) run_begin_[++num_runs_] = static_cast<std::size_t>(out - needed_.data());
}

// Less than a leaf's, in no order.
void GapFinder::add_unsorted(const Range* first, const Range* last, Bytes size) noexcept {
  std::array<Range, kLeaf> sorted;
  Range* end = sorted.data();
  for (; first != last; ++first, ++end) {
    Range* to = end;
    for (; to != sorted.data() && first->begin < to[-1].begin; --to) *to = to[-1];
    *to = *first;
  }
  add_run(sorted.data(), end, size);
}

// The ranges of the births in (after, before), those before index `from` being known not to be after. Where they begin.
std::size_t GapFinder::collect(const Needs& needs, Bytes size, std::size_t from, Tick after, Tick before) noexcept {
  const std::size_t begin = first_after(needs.births, from, after);
  const std::size_t end = before <= after ? begin : first_after(needs.births, begin, before - 1);
  for (std::size_t first = begin; first < end;) {
    if (first % kLeaf != 0 || first + kLeaf > end) {
      const std::size_t next = std::min(end, (first / kLeaf + 1) * kLeaf);
      add_unsorted(needs.slots.data() + first, needs.slots.data() + next, size);
      first = next;
      continue;
    }
    std::size_t level = 0;  // the highest whose node begins here and ends in time
    std::size_t node = first / kLeaf;
    while (node % 2 == 0 && level + 1 < needs.levels.size() && first + (kLeaf << (level + 1)) <= end) {
      node /= 2;
      ++level;
    }
    const Needs::Level& nodes = needs.levels[level];
    add_run(nodes.ranges.data() + nodes.node_begin[node], nodes.ranges.data() + nodes.node_begin[node + 1], size);
    first += kLeaf << level;
  }
  return begin;
}

// All that is needed in (now, until), sorted, without the holes between that cannot hold `size` bytes.
void GapFinder::collect_span(RoleIndex space, Bytes size, Tick now, Tick until, bool sparing) noexcept {
  if (span_.space == space && span_.sparing == sparing && span_.now == now && span_.until == until && span_.size <= size) return;
  span_ = {space, size, now, until, sparing};
  Needs& needs = needs_[static_cast<std::size_t>(space)];
  num_runs_ = 0;
  const bool is_behind = needs.last_begin > 0 && needs.births[needs.last_begin - 1] > now;
  needs.last_begin = collect(needs, size, is_behind ? 0 : needs.last_begin, now, until);
  if (until > window_end_)
    (void)collect(needs, size, 0, window_begin_ - 1, std::min(window_begin_ + (until - window_end_), now));
  if (sparing) (void)collect(spared_[static_cast<std::size_t>(space)], size, 0, now, window_end_);
  merge_runs(size);
}

void GapFinder::merge_runs(Bytes size) noexcept {
  while (num_runs_ > 1) {
    std::size_t count = 0;
    Range* out = merged_.data();
    for (std::size_t run = 0; run < num_runs_; run += 2) {
      const Range* ranges = needed_.data();
      out = merge(ranges + run_begin_[run], ranges + run_begin_[run + 1], ranges + run_begin_[std::min(run + 2, num_runs_)], size, out);
      run_begin_[++count] = static_cast<std::size_t>(out - merged_.data());
    }
    num_runs_ = count;
    needed_.swap(merged_);
  }
}

// Two runs, the first from `a` to `b`, the second from there to `end`.
GapFinder::Range* GapFinder::merge(const Range* a, const Range* b, const Range* end, Bytes size, Range* out) const noexcept {
  const Range* const a_end = b;
  const Range* const begin = out;
  while (a != a_end || b != end) {
    const bool from_a = b == end || (a != a_end && a->begin <= b->begin);
    const Range next = *(from_a ? a : b);
    a += from_a ? 1 : 0;
    b += from_a ? 0 : 1;
    if (out != begin && next.begin - out[-1].end < size) out[-1].end = std::max(out[-1].end, next.end);
    else *out++ = next;
  }
  return out;
}

// What the needed ranges leave of a free block. `extent_begin`: of the map in the plan's address space.
void GapFinder::look_into(const BlockMap& map, BlockMap::BlockIndex block, Bytes extent_begin, Bytes size, Gap& best) const noexcept {
  Bytes free_from = extent_begin + map.offset_of(block);
  const Bytes end = free_from + map.size_of(block);
  const auto consider = [&](Bytes until) {
    const Bytes found = until - free_from;
    if (found >= size && (!best || found < best.size)) best = {block, free_from - extent_begin, found};
  };
  const auto needed_end = needed_.begin() + static_cast<std::ptrdiff_t>(run_begin_[num_runs_]);
  auto needed = std::partition_point(needed_.begin(), needed_end, [&](const Range& range) { return range.end <= free_from; });
  for (; needed != needed_end && needed->begin < end; ++needed) {
    consider(needed->begin);
    free_from = needed->end;
  }
  consider(end);
}

Gap GapFinder::find(BlockMap& map, RoleIndex space, Bytes extent_begin, Bytes size, Tick now, Tick until,
                    bool sparing) noexcept {
  collect_span(space, size, now, until, sparing);
  Gap best;
  std::size_t num_looks = 0;
  map.visit_free(size, [&](BlockMap::BlockIndex block) {
    look_into(map, block, extent_begin, size, best);
    if (best) ++num_looks;
    return best.size != size && num_looks < kMaxLooks;
  });
  return best;
}

}  // namespace stalloc
