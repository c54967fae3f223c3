#include "core/planner_search.h"

#include <algorithm>
#include <cmath>

#include "core/planner_best_fit.h"
#include "core/planner_exact.h"

namespace stalloc {
namespace {

// Capacities are told as shares of the way from the goal to the best peak. New placements aim at the goal and half
// way in turn, mostly at the goal where the problem is small; repairs of the best placement go in steps that are longer
// after a success.
constexpr double kNewShares[] = {0.0, 0.5};
constexpr double kNewSharesWhenSmall[] = {0.0, 0.0, 0.0, 0.5};
constexpr double kRepairShareAfterSuccess = 0.5;
constexpr double kRepairShareAfterFailure = 0.75;
// Exact searches ask mostly whether the goal can be reached, and sometimes for less.
constexpr double kExactShares[] = {0.0, 0.0, 0.0, 0.5};
constexpr ItemIndex kMaxItemsForExact = 2000;  // it recurses that deep
constexpr std::int64_t kFirstExactPlacements = 4000;
constexpr int kExactAttemptsPerDoubling = 16;
constexpr int kStylesPerRound = 4;
// Of walks, before the best is repaired. Where the problem is small, a round takes a sixth of what the repair takes.
constexpr int kRoundsWhenSmall = 5, kRounds = 2;
constexpr int kPatiences[] = {60, 120, 240};
constexpr std::size_t kMaxHardInstants = 4;
constexpr int kNumRetries = 20;  // of a walk, at each tight instant
constexpr double kRetryShare = 8;
// The first answer looks at these capacities over the goal: nothing to spare, then a little.
constexpr double kFirstSlacks[] = {0.0, 0.001, 0.01};

constexpr std::size_t kMaxItemsByBestFit = 20000;  // it is quadratic in what lives at once

double area_unplaced(const Problem& problem, const Offsets& offsets) {
  double area = 0;
  for (ItemIndex i = 0; i < problem.num_movable; ++i) {
    if (offsets[static_cast<std::size_t>(i)] != kUnplaced) continue;
    const Item& item = problem.item(i);
    area += static_cast<double>(item.size) * static_cast<double>(item.upper - item.lower);
  }
  return area;
}

PeakOutStyle first_style(float death_weight) {
  PeakOutStyle style;
  style.death_weight = death_weight;
  return style;
}

}  // namespace

ComponentSearch::ComponentSearch(Component component, Units goal, std::uint64_t seed)
    : component_(std::move(component)), peak_out_(component_.problem),
      goal_(std::max(goal, component_.problem.lower_bound)), proved_bound_(component_.problem.lower_bound),
      random_(seed) {}

// The partial placement that leaves the least area out is left in `partial`; the result is it made whole.
AttemptResult ComponentSearch::place_with(const std::vector<PeakOutStyle>& styles, Units capacity,
                                          Offsets& partial) const {
  AttemptResult result;
  double least_area = 0;
  for (std::size_t k = 0; k < styles.size(); ++k) {
    Offsets offsets = peak_out_.place(capacity, styles[k]);
    const double area = area_unplaced(component_.problem, offsets);
    if (result.best_style >= 0 && area >= least_area) continue;
    least_area = area;
    result.best_style = static_cast<int>(k);
    partial = std::move(offsets);
    if (area <= 0) break;
  }
  result.offsets = partial;
  place_rest(component_.problem, result.offsets);
  result.peak = peak_of(component_.problem, result.offsets);
  return result;
}

void ComponentSearch::find_first_answer() {
  for (const double slack : kFirstSlacks) {
    const auto capacity = goal_ + static_cast<Units>(static_cast<double>(goal_) * slack);
    if (peak_ <= capacity) return;
    const std::vector<PeakOutStyle> styles{first_style(1.0F), first_style(0.0F)};
    Offsets partial;
    AttemptResult result = place_with(styles, capacity, partial);
    keep_better(result, "peak_out");
  }
  // Around fixed items the walk is blind to what comes later; plain best fit by size is another opinion.
  const bool has_fixed = !component_.problem.fixed_offsets.empty();
  if (is_done(0) || !has_fixed || component_.problem.items.size() > kMaxItemsByBestFit) return;
  AttemptResult result;
  result.offsets = unplaced_offsets(component_.problem);
  place_rest(component_.problem, result.offsets);
  result.peak = peak_of(component_.problem, result.offsets);
  keep_better(result, "best_fit");
}

// The favourite, or in every second attempt one bred from the elite; the favourite with noise; and two that are free.
PeakOutStyle ComponentSearch::vary_style(int variant) {
  if (variant == 0 && num_new_attempts_ % 2 == 0 && elite_left_out_ < std::numeric_limits<double>::infinity()) {
    PeakOutStyle style = elite_;
    style.fit_weight *= static_cast<float>(std::exp(random_.uniform() - 0.5));
    style.edge_distance *= static_cast<float>(std::exp(random_.uniform() - 0.5));
    if (random_.below(2) == 0) style.seed = random_.next();
    return style;
  }
  PeakOutStyle style = favourite_;
  style.fit_weight = static_cast<float>(std::exp(random_.uniform() * 5.0 - 2.5));
  style.edge_distance = static_cast<float>(std::exp(random_.uniform() * 10.0));
  style.seed = random_.next();
  style.noise = variant % 2 == 0 ? 0.0F : static_cast<float>(random_.uniform());
  if (variant >= 2) {
    style.death_weight = static_cast<float>(random_.below(3)) / 2.0F;
    style.two_ended = random_.uniform() < 0.25;
    style.pivot = choose_pivot();
  }
  return style;
}

// The peak, or where something had to be left out lately: what is stacked leaves nothing out.
Instant ComponentSearch::choose_pivot() {
  const std::size_t choice = random_.below(1 + hard_instants_.size());
  return choice == 0 ? -1 : hard_instants_[choice - 1];
}

// The highest instant of the largest item left out.
Instant ComponentSearch::find_hard_instant(const Offsets& partial) const {
  const Problem& problem = component_.problem;
  ItemIndex largest = -1;
  for (ItemIndex i = 0; i < problem.num_movable; ++i) {
    if (partial[static_cast<std::size_t>(i)] != kUnplaced) continue;
    if (largest < 0 || problem.item(i).size > problem.item(largest).size) largest = i;
  }
  if (largest < 0) return -1;
  const auto live = problem.live.begin();
  const Item& item = problem.item(largest);
  return static_cast<Instant>(std::max_element(live + item.lower, live + item.upper) - live);
}

bool ComponentSearch::is_small() const noexcept {
  const Problem& problem = component_.problem;
  return problem.num_items() == problem.num_movable && problem.num_items() <= kMaxItemsForExact;
}

// Two threads that share the component mostly get attempts that take about as long.
AttemptKind ComponentSearch::next_kind() {
  const int turn = num_attempts_++;
  if (!is_small()) return turn % 2 == 1 ? AttemptKind::kRepair : AttemptKind::kNew;
  if (turn % 6 >= 4) return AttemptKind::kExact;
  return turn % 6 == 1 ? AttemptKind::kRepair : AttemptKind::kNew;
}

double ComponentSearch::next_share(AttemptKind kind) {
  switch (kind) {
    case AttemptKind::kNew: {
      const int turn = num_new_attempts_++;
      return is_small() ? kNewSharesWhenSmall[turn % 4] : kNewShares[turn % 2];
    }
    case AttemptKind::kRepair: return repair_failed_ ? kRepairShareAfterFailure : kRepairShareAfterSuccess;
    case AttemptKind::kExact: return kExactShares[random_.below(4)];
  }
  return 0;
}

Attempt ComponentSearch::plan_attempt() {
  if (!timeline_) timeline_ = std::make_unique<Timeline>(component_.problem);
  Attempt attempt;
  attempt.kind = next_kind();
  const Units highest = attempt.kind == AttemptKind::kExact ? peak_ - 1 : peak_;
  attempt.capacity = goal_ + static_cast<Units>(static_cast<double>(highest - goal_) * next_share(attempt.kind));
  attempt.seed = random_.next();
  if (attempt.kind == AttemptKind::kExact) {
    const int doublings = std::min(num_exact_attempts_++ / kExactAttemptsPerDoubling, 30);
    attempt.num_placements = kFirstExactPlacements << doublings;
    return attempt;
  }
  if (attempt.kind == AttemptKind::kNew) {
    const int num_styles = (is_small() ? kRoundsWhenSmall : kRounds) * kStylesPerRound;
    for (int k = 0; k < num_styles; ++k) attempt.styles.push_back(vary_style(k % kStylesPerRound));
  }
  attempt.with_retries = random_.below(2) == 0;
  attempt.effort.patience = kPatiences[random_.below(3)];
  return attempt;
}

AttemptResult ComponentSearch::carry_out(const Attempt& attempt, const Deadline& deadline) const {
  if (attempt.kind == AttemptKind::kExact) return carry_out_exact(attempt, deadline);
  AttemptResult result{offsets_, peak_};
  Offsets partial = offsets_;
  if (attempt.kind == AttemptKind::kNew) {
    result = carry_out_new(attempt, deadline, partial);
    if (result.peak <= attempt.capacity) return result;
  }
  Repair repair(component_.problem, *timeline_, std::move(partial), attempt.capacity, attempt.effort, attempt.seed);
  repair.run(deadline);
  if (attempt.kind == AttemptKind::kNew) result.left_out = repair.unplaced_area();
  Offsets repaired = repair.offsets();
  place_rest(component_.problem, repaired);
  const Units peak = peak_of(component_.problem, repaired);
  if (peak < result.peak) result.offsets = std::move(repaired), result.peak = peak;
  return result;
}

AttemptResult ComponentSearch::carry_out_exact(const Attempt& attempt, const Deadline& deadline) const {
  AttemptResult result;
  ExactSearch search(component_.problem, attempt.capacity, attempt.seed);
  const ExactAnswer answer = search.run(attempt.num_placements, deadline);
  result.is_infeasible = answer == ExactAnswer::kDoesNotFit;
  if (answer != ExactAnswer::kFits) return result;
  result.offsets = search.offsets();
  result.peak = peak_of(component_.problem, result.offsets);
  return result;
}

// Rounds until one succeeds. What left the least out is left in `partial`.
AttemptResult ComponentSearch::carry_out_new(const Attempt& attempt, const Deadline& deadline, Offsets& partial) const {
  AttemptResult best;
  double least_area = 0;
  for (auto style = attempt.styles.begin(); style != attempt.styles.end(); style += kStylesPerRound) {
    Offsets left;
    AttemptResult result = carry_out_round(attempt, {style, style + kStylesPerRound}, left);
    const double area = area_unplaced(component_.problem, left);
    if (best.best_style < 0 || area < least_area) {
      least_area = area;
      partial = std::move(left);
      best.best_style = static_cast<int>(style - attempt.styles.begin()) + result.best_style;
      best.hard_instant = result.hard_instant;
    }
    if (result.peak < best.peak) best.offsets = std::move(result.offsets), best.peak = result.peak;
    if (best.peak <= attempt.capacity || deadline.is_over()) break;
  }
  return best;
}

AttemptResult ComponentSearch::carry_out_round(const Attempt& attempt, const std::vector<PeakOutStyle>& styles,
                                               Offsets& partial) const {
  AttemptResult result = place_with(styles, attempt.capacity, partial);
  result.hard_instant = find_hard_instant(partial);
  if (result.peak <= attempt.capacity || !attempt.with_retries) return result;
  PeakOutStyle style = styles[static_cast<std::size_t>(result.best_style)];
  style.num_retries = kNumRetries;
  style.retry_share = kRetryShare;
  AttemptResult again = place_with({style}, attempt.capacity, partial);
  if (again.peak > attempt.capacity) result.hard_instant = find_hard_instant(partial);
  if (again.peak < result.peak) result.offsets = std::move(again.offsets), result.peak = again.peak;
  return result;
}

void ComponentSearch::learn(const Attempt& attempt, AttemptResult result) {
  if (result.best_style >= 0) favourite_ = attempt.styles[static_cast<std::size_t>(result.best_style)];
  if (result.best_style >= 0 && attempt.capacity == goal_ && result.left_out < elite_left_out_) {
    elite_ = attempt.styles[static_cast<std::size_t>(result.best_style)];
    elite_left_out_ = result.left_out;
  }
  if (result.hard_instant >= 0) {
    if (hard_instants_.size() < kMaxHardInstants) hard_instants_.emplace_back();
    hard_instants_[static_cast<std::size_t>(num_hard_instants_++) % kMaxHardInstants] = result.hard_instant;
  }
  if (attempt.kind == AttemptKind::kRepair) repair_failed_ = result.peak > attempt.capacity;
  if (result.is_infeasible) {
    proved_bound_ = std::max(proved_bound_, attempt.capacity + 1);
    goal_ = std::max(goal_, proved_bound_);
  }
  constexpr const char* kMethods[] = {"peak_out", "repair", "exact"};
  keep_better(result, kMethods[static_cast<int>(attempt.kind)]);
  if (result.is_infeasible && peak_ == proved_bound_) method_ = "exact";
}

void ComponentSearch::keep_better(AttemptResult& result, const char* method) {
  if (result.peak >= peak_) return;
  offsets_ = std::move(result.offsets);
  peak_ = result.peak;
  method_ = method;
}

}  // namespace stalloc
