#include "core/planner_walk.h"

#include <algorithm>
#include <cstdlib>
#include <limits>

namespace stalloc {
namespace {

constexpr ItemIndex kEdge = -1;
constexpr float kExactFitBonus = 5.0F;

constexpr std::size_t kSnapshotSpacing = 16;
constexpr std::size_t kRetryDistances = 7;  // going back 1, 2, 4 .. times the spacing
constexpr float kRetryNoise = 1.0F;

// Heap order of the items alive: the first to die is on top.
struct DiesLater {
  const Problem& problem;
  TimeDirection direction;

  bool operator()(ItemIndex a, ItemIndex b) const {
    const Instant dead_a = direction.death(problem.item(a)), dead_b = direction.death(problem.item(b));
    return dead_a != dead_b ? dead_a > dead_b : a > b;
  }
};

}  // namespace

Walk::Walk(const Problem& problem, TimeDirection direction, Units capacity, const PeakOutStyle& style,
           Offsets& offsets)
    : problem_(problem), direction_(direction), capacity_(capacity), style_(style), offsets_(offsets), random_(style.seed + 1),
      below_(problem.items.size(), kEdge), above_(problem.items.size(), kEdge),
      noise_(style.noise) {
  for (ItemIndex i = problem.num_movable; i < problem.num_items(); ++i) fixed_by_birth_.push_back(i);
  std::sort(fixed_by_birth_.begin(), fixed_by_birth_.end(), [&](ItemIndex a, ItemIndex b) {
    const Instant born_a = direction.birth(problem.item(a)), born_b = direction.birth(problem.item(b));
    return born_a != born_b ? born_a < born_b : a < b;
  });
}

void Walk::run(const std::vector<ItemIndex>& alive, const std::vector<ItemIndex>& births) {
  start(alive);
  std::size_t furthest = 0;
  std::int64_t births_left = static_cast<std::int64_t>(static_cast<double>(births.size()) * style_.retry_share);
  for (std::size_t k = 0; k < births.size();) {
    const bool may_come_back = style_.num_retries > 0 && k % kSnapshotSpacing == 0;
    if (may_come_back && k / kSnapshotSpacing == alive_at_.size()) alive_at_.push_back(deaths_);
    if (!step(births[k]) && num_retries_ < style_.num_retries && births_left > 0) {
      furthest = std::max(furthest, k);
      const std::size_t back = go_back(births, k);
      births_left -= static_cast<std::int64_t>(k - back);
      k = back;
      continue;
    }
    ++k;
    if (k > furthest) num_retries_ = 0, noise_ = style_.noise;
  }
}

std::size_t Walk::go_back(const std::vector<ItemIndex>& births, std::size_t failed) {
  ++num_retries_;
  noise_ = kRetryNoise * static_cast<float>(random_.uniform());
  const std::size_t distance = kSnapshotSpacing << random_.below(kRetryDistances);
  const std::size_t snapshot = (failed - std::min(failed, distance)) / kSnapshotSpacing;
  const std::size_t back = snapshot * kSnapshotSpacing;
  for (std::size_t k = back; k <= failed; ++k) {
    if (!problem_.is_fixed(births[k])) offsets_[static_cast<std::size_t>(births[k])] = kUnplaced;
  }
  const std::vector<ItemIndex> alive = alive_at_[snapshot];
  alive_at_.resize(snapshot + 1);
  start(alive);
  return back;
}

bool Walk::step(ItemIndex born) {
  const DiesLater dies_later{problem_, direction_};
  const Instant now = direction_.birth(problem_.item(born));
  while (!deaths_.empty() && direction_.death(problem_.item(deaths_.front())) <= now) {
    release(deaths_.front());
    std::pop_heap(deaths_.begin(), deaths_.end(), dies_later);
    deaths_.pop_back();
  }
  const Units offset = problem_.is_fixed(born) ? offsets_[static_cast<std::size_t>(born)] : choose(born);
  if (offset == kUnplaced) return false;
  occupy(born, offset);
  deaths_.push_back(born);
  std::push_heap(deaths_.begin(), deaths_.end(), dies_later);
  return true;
}

void Walk::start(const std::vector<ItemIndex>& alive) {
  gaps_.clear();
  deaths_.clear();
  for (const ItemIndex i : alive) {
    if (offsets_[static_cast<std::size_t>(i)] != kUnplaced) deaths_.push_back(i);
  }
  std::sort(deaths_.begin(), deaths_.end(), [&](ItemIndex a, ItemIndex b) {
    return offsets_[static_cast<std::size_t>(a)] < offsets_[static_cast<std::size_t>(b)];
  });
  Units reached = 0;
  ItemIndex below = kEdge;
  for (const ItemIndex i : deaths_) {
    const Units offset = offsets_[static_cast<std::size_t>(i)];
    if (offset > reached) gaps_.push_back({reached, offset, below, i});
    below_[static_cast<std::size_t>(i)] = below;
    above_[static_cast<std::size_t>(i)] = kEdge;
    if (below != kEdge) above_[static_cast<std::size_t>(below)] = i;
    reached = offset + problem_.item(i).size;
    below = i;
  }
  if (reached < capacity_) gaps_.push_back({reached, capacity_, below, kEdge});
  std::make_heap(deaths_.begin(), deaths_.end(), DiesLater{problem_, direction_});
}

void Walk::release(ItemIndex dead) {
  const ItemIndex below = below_[static_cast<std::size_t>(dead)], above = above_[static_cast<std::size_t>(dead)];
  if (below != kEdge) above_[static_cast<std::size_t>(below)] = above;
  if (above != kEdge) below_[static_cast<std::size_t>(above)] = below;
  Gap gap{offsets_[static_cast<std::size_t>(dead)], 0, below, above};
  gap.end = gap.begin + problem_.item(dead).size;
  auto next = std::lower_bound(gaps_.begin(), gaps_.end(), gap.begin,
                               [](const Gap& other, Units begin) { return other.begin < begin; });
  const bool joins_above = next != gaps_.end() && next->begin == gap.end;
  const bool joins_below = next != gaps_.begin() && std::prev(next)->end == gap.begin;
  if (joins_above) gap.end = next->end;
  if (joins_below) gap.begin = std::prev(next)->begin;
  if (joins_above && joins_below) next = gaps_.erase(next);
  if (joins_below) {
    *std::prev(next) = gap;
  } else if (joins_above) {
    *next = gap;
  } else {
    gaps_.insert(next, gap);
  }
}

void Walk::occupy(ItemIndex born, Units offset) {
  const Units end = offset + problem_.item(born).size;
  auto after = std::upper_bound(gaps_.begin(), gaps_.end(), offset,
                                [](Units begin, const Gap& other) { return begin < other.begin; });
  const auto gap = std::prev(after);  // the one that holds the place
  const Gap whole = *gap;
  offsets_[static_cast<std::size_t>(born)] = offset;
  below_[static_cast<std::size_t>(born)] = whole.below;
  above_[static_cast<std::size_t>(born)] = whole.above;
  if (whole.below != kEdge) above_[static_cast<std::size_t>(whole.below)] = born;
  if (whole.above != kEdge) below_[static_cast<std::size_t>(whole.above)] = born;
  const Gap lower{whole.begin, offset, whole.below, born}, upper{end, whole.end, born, whole.above};
  if (lower.begin < lower.end && upper.begin < upper.end) {
    *gap = lower;
    gaps_.insert(after, upper);
  } else if (lower.begin < lower.end) {
    *gap = lower;
  } else if (upper.begin < upper.end) {
    *gap = upper;
  } else {
    gaps_.erase(gap);
  }
}

Units Walk::choose(ItemIndex born) {
  Choice best;
  const Units size = problem_.item(born).size;
  find_fixed_ahead(born);
  for (const Gap& gap : gaps_) {
    if (gap.end - gap.begin < size) continue;
    if (fixed_ahead_.empty()) {
      score_gap(born, gap, best);
    } else {
      score_cut_gap(born, gap, best);
    }
  }
  return best.offset;
}

float Walk::time_apart(ItemIndex neighbour, Instant death) const {
  if (neighbour == kEdge) return style_.edge_distance;
  return static_cast<float>(std::abs(direction_.death(problem_.item(neighbour)) - death));
}

// The lower end of the gap and its upper end are two places; lower scores are better.
void Walk::score_gap(ItemIndex born, const Gap& gap, Choice& best) {
  const Units size = problem_.item(born).size;
  const Units left_over = gap.end - gap.begin - size;
  const Instant death = direction_.death(problem_.item(born));
  float low = rough_log2(1.0F + time_apart(gap.below, death));
  float high = rough_log2(1.0F + time_apart(gap.above, death));
  if (left_over == 0) {
    low = high = std::min(low, high) - kExactFitBonus;
  } else {
    const float misfit =
        1.0F + style_.fit_weight * rough_log2(1.0F + static_cast<float>(left_over) / static_cast<float>(size));
    low += misfit;
    high += misfit;
  }
  if (noise_ > 0) {
    low += noise_ * static_cast<float>(random_.uniform());
    high += noise_ * static_cast<float>(random_.uniform());
  }
  if (best.offset == kUnplaced || low < best.score) best = {gap.begin, low};
  if (high < best.score) best = {gap.end - size, high};
}

void Walk::score_cut_gap(ItemIndex born, const Gap& gap, Choice& best) {
  const Units size = problem_.item(born).size;
  Gap part = gap;
  for (const auto& [begin, end] : fixed_ahead_) {
    if (begin >= gap.end) break;
    if (end <= part.begin) continue;
    part.end = begin;
    part.above = kEdge;
    if (part.end - part.begin >= size) score_gap(born, part, best);
    part.begin = end;
    part.below = kEdge;
  }
  part.end = gap.end;
  part.above = gap.above;
  if (part.end - part.begin >= size) score_gap(born, part, best);
}

void Walk::find_fixed_ahead(ItemIndex born) {
  fixed_ahead_.clear();
  if (fixed_by_birth_.empty()) return;
  const Item& item = problem_.item(born);
  const auto first = std::upper_bound(
      fixed_by_birth_.begin(), fixed_by_birth_.end(), direction_.birth(item),
      [&](Instant now, ItemIndex i) { return now < direction_.birth(problem_.item(i)); });
  for (auto fixed = first; fixed != fixed_by_birth_.end(); ++fixed) {
    if (direction_.birth(problem_.item(*fixed)) >= direction_.death(item)) break;
    const Units begin = offsets_[static_cast<std::size_t>(*fixed)];
    fixed_ahead_.emplace_back(begin, begin + problem_.item(*fixed).size);
  }
  std::sort(fixed_ahead_.begin(), fixed_ahead_.end());
}

}  // namespace stalloc
