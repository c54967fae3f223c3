// The search for a good placement of one component: a first answer, then attempts under smaller and smaller
// capacities.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/planner_deadline.h"
#include "core/planner_peak_out.h"
#include "core/planner_problem.h"
#include "core/planner_repair.h"

namespace stalloc {

// What one attempt is to do. Made by plan_attempt(), carried out by any thread.
struct Attempt {
  Units capacity = 0;
  bool from_best = false;  // repair the best placement so far, else the best of some peak-out placements
  bool with_retries = false;  // of the best of them
  std::vector<PeakOutStyle> styles;
  RepairEffort effort;
  std::uint64_t seed = 0;
};

struct AttemptResult {
  Offsets offsets;  // whole
  Units peak = 0;
  int best_style = -1;  // into Attempt::styles
};

class ComponentSearch {
 public:
  // `goal`: a peak that is good enough, never below the component's lower bound.
  ComponentSearch(Component component, Units goal, std::uint64_t seed);

  // Always finishes, in a time that is small and grows as n log n.
  void find_first_answer();

  Attempt plan_attempt();
  AttemptResult carry_out(const Attempt& attempt, const Deadline& deadline) const;
  // Keeps the result if it is better, and aims the next attempts accordingly.
  void learn(const Attempt& attempt, AttemptResult result);

  bool is_done() const noexcept { return peak_ <= goal_; }
  Units peak() const noexcept { return peak_; }
  const Offsets& offsets() const noexcept { return offsets_; }
  const std::vector<ItemIndex>& origin() const noexcept { return component_.origin; }

 private:
  AttemptResult place_with(const std::vector<PeakOutStyle>& styles, Units capacity, Offsets& partial) const;
  PeakOutStyle vary_style(int variant);
  void keep_better(AttemptResult& result);

  Component component_;
  PeakOut peak_out_;
  std::unique_ptr<Timeline> timeline_;  // made when the first attempt is planned
  Units goal_;
  Offsets offsets_;
  Units peak_ = kNever;
  Random random_;
  int num_attempts_ = 0;
  bool repair_failed_ = false;  // the last of the best placement
  PeakOutStyle favourite_;  // the last that was best of its attempt
};

}  // namespace stalloc
