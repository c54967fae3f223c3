#include "core/planner_exact.h"

#include <algorithm>
#include <numeric>

namespace stalloc {
namespace {

constexpr std::int64_t kPlacementsPerRestart = 3000;  // and one an item, which it takes at least
// Some rules look at many more neighbours a placement than others; they do not get more time for that.
constexpr std::int64_t kRoundsOfNeighbours = 2;
constexpr std::int64_t kPlacementsPerClockCheck = 64;
constexpr int kHopelessBits = 16;

// 1 1 2 1 1 2 4 1 1 2 1 1 2 4 8 ..: short runs mostly, each length having about the same effort in all.
std::int64_t restart_length(std::int64_t k) {
  std::int64_t length = 1;
  while (2 * length - 1 < k) length *= 2;
  return 2 * length - 1 == k ? length : restart_length(k - length + 1);
}

}  // namespace

ExactSearch::ExactSearch(const Problem& problem, Units capacity, std::uint64_t seed)
    : problem_(problem), capacity_(capacity), random_(seed), state_(problem, capacity),
      item_keys_(problem.items.size(), 0), conflicts_(problem.live.size(), 1),
      hopeless_(std::size_t{1} << kHopelessBits, 0) {}

ExactAnswer ExactSearch::run(std::int64_t num_placements, const Deadline& deadline) {
  deadline_ = &deadline;
  const std::int64_t end = num_placements_ + num_placements;
  while (num_placements_ < end) {
    choose_rules();
    const std::int64_t unit = kPlacementsPerRestart + problem_.num_items();
    const std::int64_t length = unit * restart_length(++num_restarts_);
    stop_at_ = num_placements_ + length;
    stop_at_looks_ = state_.num_looks() + length * kRoundsOfNeighbours * (1 + state_.mean_neighbours());
    is_stopped_ = false;
    pool_.resize(problem_.items.size());
    std::iota(pool_.begin(), pool_.end(), 0);
    if (solve({0, problem_.num_instants, 0, pool_.size()})) return ExactAnswer::kFits;
    if (!is_stopped_) return ExactAnswer::kDoesNotFit;
    num_placements_ = std::max(num_placements_, stop_at_);  // looks count as much
    if (deadline.is_over()) break;
  }
  return ExactAnswer::kUnknown;
}

void ExactSearch::choose_rules() {
  // The rules that succeed most often come most often.
  constexpr SectionRule kSectionRules[] = {
      SectionRule::kConflicts,       SectionRule::kSlackAndChoices, SectionRule::kSlackAndChoices,
      SectionRule::kSlackAndChoices, SectionRule::kLeastSlack,      SectionRule::kLeastSlack,
      SectionRule::kFewestChoices,   SectionRule::kSlackAndChoices};
  constexpr ItemRule kItemRules[] = {ItemRule::kLongest, ItemRule::kLargestArea, ItemRule::kBusiest,
                                     ItemRule::kLargest};
  section_rule_ = kSectionRules[random_.below(8)];
  const ItemRule item_rule = kItemRules[random_.below(4)];
  const double noise = random_.below(3) == 0 ? 0 : random_.uniform();
  for (ItemIndex i = 0; i < problem_.num_items(); ++i) {
    item_keys_[static_cast<std::size_t>(i)] = -item_key(i, item_rule) * (1 + noise * (random_.uniform() - 0.5));
  }
  std::fill(conflicts_.begin(), conflicts_.end(), 1.0);
}

double ExactSearch::item_key(ItemIndex i, ItemRule rule) const {
  const Item& item = problem_.item(i);
  const auto life = static_cast<double>(item.upper - item.lower), size = static_cast<double>(item.size);
  switch (rule) {
    case ItemRule::kLongest: return life + size / static_cast<double>(capacity_);
    case ItemRule::kLargestArea: return life * size;
    case ItemRule::kBusiest: {
      const auto live = problem_.live.begin();
      const Units most = *std::max_element(live + item.lower, live + item.upper);
      return static_cast<double>(most) + life / static_cast<double>(problem_.num_instants);
    }
    case ItemRule::kLargest: return size;
  }
  return 0;
}

// Parts share no item, so that the first way to fill each is as good as any other.
bool ExactSearch::solve(const Part& part) {
  if (part.items_begin == part.items_end) return true;
  const std::size_t mark = state_.mark(), pool_size = pool_.size();
  bool fits = true;
  const std::vector<Part> parts = split(part);
  for (std::size_t k = 0; fits && k < parts.size(); ++k) fits = branch(parts[k]);
  if (!fits) state_.undo(mark);
  pool_.resize(pool_size);
  return fits;
}

std::vector<ExactSearch::Part> ExactSearch::split(const Part& part) {
  std::vector<Part> parts;
  Part next{part.begin, part.begin, part.items_begin, part.items_end};
  for (Instant s = part.begin + 1; s <= part.end; ++s) {
    if (s < part.end && state_.is_joined(s)) continue;
    next.end = s;
    if (next.begin == part.begin && s == part.end) return {next};
    if (!state_.is_full(next.begin)) {
      next.items_begin = pool_.size();
      for (std::size_t k = part.items_begin; k < part.items_end; ++k) {
        const Instant lower = problem_.item(pool_[k]).lower;
        if (next.begin <= lower && lower < s) pool_.push_back(pool_[k]);
      }
      next.items_end = pool_.size();
      parts.push_back(next);
    }
    next.begin = s;
  }
  // The smallest are the quickest to fail.
  std::stable_sort(parts.begin(), parts.end(), [](const Part& a, const Part& b) {
    return a.items_end - a.items_begin < b.items_end - b.items_begin;
  });
  return parts;
}

bool ExactSearch::is_out_of_effort() {
  if (num_placements_ >= stop_at_ || state_.num_looks() >= stop_at_looks_) is_stopped_ = true;
  if (num_placements_ >= next_clock_check_) {
    next_clock_check_ = num_placements_ + kPlacementsPerClockCheck;
    if (deadline_->is_over()) is_stopped_ = true;
  }
  return is_stopped_;
}

bool ExactSearch::branch(const Part& part) {
  if (is_out_of_effort()) return false;
  const std::uint64_t state = signature(part);
  std::uint64_t& hopeless = hopeless_[state >> (64 - kHopelessBits)];
  if (hopeless == state) return false;
  const Instant section = choose_section(part);
  const bool may_be_empty = state_.slack(section) > 0;
  std::vector<ItemIndex> choices;
  state_.choices(section, choices);
  std::sort(choices.begin(), choices.end(), [this](ItemIndex a, ItemIndex b) {
    const double key_a = item_keys_[static_cast<std::size_t>(a)], key_b = item_keys_[static_cast<std::size_t>(b)];
    return key_a != key_b ? key_a < key_b : a < b;
  });
  const std::size_t mark = state_.mark();
  for (const ItemIndex i : choices) {
    if (place(part, i)) return true;
    state_.undo(mark);
    if (is_stopped_) return false;
  }
  if (may_be_empty) {
    ++num_placements_;
    if (!state_.leave_empty(section)) {
      ++conflicts_[static_cast<std::size_t>(state_.conflict())];
    } else if (branch(part)) {
      return true;
    }
    state_.undo(mark);
  }
  if (!is_stopped_) hopeless = state;
  return false;
}

bool ExactSearch::place(const Part& part, ItemIndex i) {
  ++num_placements_;
  if (!state_.place(i)) {
    ++conflicts_[static_cast<std::size_t>(state_.conflict())];
    return false;
  }
  Part rest{part.begin, part.end, pool_.size(), pool_.size()};
  for (std::size_t k = part.items_begin; k < part.items_end; ++k) {
    if (pool_[k] != i) pool_.push_back(pool_[k]);
  }
  rest.items_end = pool_.size();
  const bool fits = solve(rest);
  pool_.resize(rest.items_begin);
  return fits;
}

Instant ExactSearch::choose_section(const Part& part) {
  Instant best = -1;
  double best_key = 0;
  for (Instant s = part.begin, end = s; s < part.end; s = end) {
    for (end = s + 1; end < part.end && state_.floor(end) == state_.floor(s); ++end) continue;
    const bool rises_before = s == part.begin || state_.floor(s - 1) > state_.floor(s);
    const bool rises_after = end == part.end || state_.floor(end) > state_.floor(s);
    for (Instant t = s; rises_before && rises_after && t < end; ++t) {
      if (best >= 0 && section_key(t, 1) >= best_key) continue;  // one choice at least: not worth counting them
      const double key = section_key(t);
      if (best < 0 || key < best_key) best = t, best_key = key;
    }
  }
  return best;
}

// The section with the lowest key is branched on.
double ExactSearch::section_key(Instant section) {
  return section_key(section, static_cast<double>(state_.num_choices(section)));
}

double ExactSearch::section_key(Instant section, double num_choices) const {
  const double slack = static_cast<double>(state_.slack(section)) / static_cast<double>(capacity_);
  const double cases = num_choices + (slack > 0 ? 1 : 0);
  switch (section_rule_) {
    case SectionRule::kFewestChoices: return cases + slack;
    case SectionRule::kLeastSlack: return slack + cases * 1e-9;
    case SectionRule::kConflicts: return cases / conflicts_[static_cast<std::size_t>(section)];
    case SectionRule::kSlackAndChoices: return slack * cases;
  }
  return 0;
}

std::uint64_t ExactSearch::signature(const Part& part) const {
  std::uint64_t sum = 0;
  for (std::size_t k = part.items_begin; k < part.items_end; ++k) sum += state_.signature(pool_[k]);
  return sum | 1;  // 0 is an empty entry
}

}  // namespace stalloc
