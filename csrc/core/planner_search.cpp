#include "core/planner_search.h"

#include <algorithm>
#include <cmath>

#include "core/planner_best_fit.h"

namespace stalloc {
namespace {

// Capacities tried in turn, as shares of the way from the goal to the best peak.
constexpr double kLadder[] = {0.0, 0.5, 0.75};
constexpr int kNumLadderSteps = 3;
constexpr int kStylesPerAttempt = 4;
constexpr int kMaxEffort = 64;
// The first answer looks at these capacities over the goal: nothing to spare, then a little.
constexpr double kFirstSlacks[] = {0.0, 0.001, 0.01};

double area_unplaced(const Problem& problem, const Offsets& offsets) {
  double area = 0;
  for (ItemIndex i = 0; i < problem.num_movable; ++i) {
    if (offsets[static_cast<std::size_t>(i)] != kUnplaced) continue;
    const Item& item = problem.item(i);
    area += static_cast<double>(item.size) * static_cast<double>(item.upper - item.lower);
  }
  return area;
}

}  // namespace

ComponentSearch::ComponentSearch(Component component, Units goal, std::uint64_t seed)
    : component_(std::move(component)), peak_out_(component_.problem),
      goal_(std::max(goal, component_.problem.lower_bound)), random_(seed) {}

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
    const std::vector<PeakOutStyle> styles{{StackOrder::kLastDeathFirst, 0.5F, 1000.0F},
                                           {StackOrder::kFirstBirthFirst, 0.5F, 1000.0F}};
    Offsets partial;
    AttemptResult result = place_with(styles, capacity, partial);
    keep_better(result);
  }
}

PeakOutStyle ComponentSearch::next_style() {
  PeakOutStyle style;
  style.order = favourite_;
  if (num_attempts_ == 0 || random_.uniform() < 0.5) {
    style.order = static_cast<StackOrder>(random_.below(kNumStackOrders));
  }
  style.fit_weight = static_cast<float>(std::exp(random_.uniform() * 5.0 - 2.5));
  style.edge_distance = static_cast<float>(std::exp(random_.uniform() * 10.0));
  return style;
}

Attempt ComponentSearch::plan_attempt() {
  if (!timeline_) timeline_ = std::make_unique<Timeline>(component_.problem);
  Attempt attempt;
  attempt.capacity = goal_ + static_cast<Units>(static_cast<double>(peak_ - goal_) * kLadder[step_]);
  attempt.from_best = num_attempts_ % 4 == 3;
  for (int k = 0; k < kStylesPerAttempt; ++k) attempt.styles.push_back(next_style());
  attempt.effort.patience *= effort_;
  attempt.seed = random_.next();
  ++num_attempts_;
  return attempt;
}

AttemptResult ComponentSearch::carry_out(const Attempt& attempt, const Deadline& deadline) const {
  AttemptResult result{offsets_, peak_, -1};
  Offsets partial = offsets_;
  if (!attempt.from_best) {
    result = place_with(attempt.styles, attempt.capacity, partial);
    if (result.peak <= attempt.capacity) return result;
  }
  Repair repair(component_.problem, *timeline_, std::move(partial), attempt.capacity, attempt.seed);
  repair.run(attempt.effort, deadline);
  Offsets repaired = repair.offsets();
  place_rest(component_.problem, repaired);
  const Units peak = peak_of(component_.problem, repaired);
  if (peak < result.peak) result.offsets = std::move(repaired), result.peak = peak;
  return result;
}

void ComponentSearch::learn(const Attempt& attempt, AttemptResult result) {
  if (result.best_style >= 0) favourite_ = attempt.styles[static_cast<std::size_t>(result.best_style)].order;
  if (result.peak <= attempt.capacity) {
    step_ = 0;
    effort_ = 1;
  } else if (++step_ == kNumLadderSteps) {
    step_ = 0;
    effort_ = std::min(2 * effort_, kMaxEffort);
  }
  keep_better(result);
}

void ComponentSearch::keep_better(AttemptResult& result) {
  if (result.peak >= peak_) return;
  offsets_ = std::move(result.offsets);
  peak_ = result.peak;
}

}  // namespace stalloc
