// The search for a good placement of one component: a first answer, then attempts under smaller and smaller
// capacities, until the goal is reached or proved to be out of reach.
#pragma once

#include <algorithm>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "core/planner_deadline.h"
#include "core/planner_peak_out.h"
#include "core/planner_problem.h"
#include "core/planner_repair.h"

namespace stalloc {

// A new peak-out placement made whole, the best placement so far repaired, or an exact search.
enum class AttemptKind { kNew, kRepair, kExact };

// What one attempt is to do. Made by plan_attempt(), carried out by any thread.
struct Attempt {
  AttemptKind kind = AttemptKind::kNew;
  Units capacity = 0;
  std::int64_t num_placements = 0;  // of the exact search
  bool with_retries = false;  // of the best style of each round
  std::vector<PeakOutStyle> styles;  // in rounds of some
  RepairEffort effort;
  std::uint64_t seed = 0;
};

struct AttemptResult {
  Offsets offsets;  // whole, or none
  Units peak = kNever;
  bool is_infeasible = false;  // proved for the capacity of the attempt
  int best_style = -1;  // into Attempt::styles
  double left_out = 0;         // area that a new placement had no place for, in mean areas of an item
  Instant hard_instant = -1;  // where a new placement had to leave something out
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

  // `bound`: a peak that some other component cannot do without.
  bool is_good(Units peak, Units bound) const noexcept { return peak <= std::max(goal_, bound); }
  bool is_done(Units bound) const noexcept { return is_good(peak_, bound); }
  // So small that attempts are short and the exact search is worth trying.
  bool is_small() const noexcept;
  Units peak() const noexcept { return peak_; }
  // No placement has a smaller peak.
  Units proved_bound() const noexcept { return proved_bound_; }
  // What found the placement, or proved that there is no better one.
  const char* method() const noexcept { return method_; }
  const Offsets& offsets() const noexcept { return offsets_; }
  const std::vector<ItemIndex>& origin() const noexcept { return component_.origin; }

 private:
  AttemptResult place_with(const std::vector<PeakOutStyle>& styles, Units capacity, Offsets& partial) const;
  PeakOutStyle vary_style(int variant);
  Instant choose_pivot();
  Instant find_hard_instant(const Offsets& partial) const;
  AttemptKind next_kind();
  double next_share(AttemptKind kind);
  AttemptResult carry_out_exact(const Attempt& attempt, const Deadline& deadline) const;
  AttemptResult carry_out_new(const Attempt& attempt, const Deadline& deadline, Offsets& partial) const;
  AttemptResult carry_out_round(const Attempt& attempt, const std::vector<PeakOutStyle>& styles, Offsets& partial) const;
  void keep_better(AttemptResult& result, const char* method);

  Component component_;
  PeakOut peak_out_;
  std::unique_ptr<Timeline> timeline_;  // made when the first attempt is planned
  Units goal_;
  Units proved_bound_;
  Offsets offsets_;
  Units peak_ = kNever;
  const char* method_ = "";
  Random random_;
  int num_attempts_ = 0, num_exact_attempts_ = 0, num_new_attempts_ = 0, num_hard_instants_ = 0;
  bool repair_failed_ = false;  // the last of the best placement
  PeakOutStyle favourite_;  // the last that was best of its attempt
  PeakOutStyle elite_;      // the one that left least out at the goal
  double elite_left_out_ = std::numeric_limits<double>::infinity();
  std::vector<Instant> hard_instants_;  // of the last new placements, in a ring
};

}  // namespace stalloc
