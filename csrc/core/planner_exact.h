// Exact search: is there a placement below a capacity? Depth first, with restarts.
//
// Branches on what lies on the floor of one section in a valley, so that the section can be chosen anew each time:
// where the fewest cases are left, or where contradictions have been most often. Parts of time that no item still to
// be placed joins are searched one after the other. Each restart follows other rules; states that were proved
// hopeless are remembered for all of them.
#pragma once

#include <cstdint>
#include <vector>

#include "core/planner_deadline.h"
#include "core/planner_exact_state.h"
#include "core/planner_problem.h"
#include "core/planner_random.h"

namespace stalloc {

enum class ExactAnswer { kFits, kDoesNotFit, kUnknown };

class ExactSearch {
 public:
  // The problem has no fixed items and outlives the search.
  ExactSearch(const Problem& problem, Units capacity, std::uint64_t seed);

  // Goes on for about so many placements more. kUnknown when they or the time did not suffice.
  ExactAnswer run(std::int64_t num_placements, const Deadline& deadline);

  const Offsets& offsets() const noexcept { return state_.offsets(); }  // all placed after kFits
  std::int64_t num_placements() const noexcept { return num_placements_; }

 private:
  enum class SectionRule { kFewestChoices, kLeastSlack, kConflicts, kSlackAndChoices };
  enum class ItemRule { kLongest, kLargestArea, kBusiest, kLargest };
  // A span of time and the items still to be placed in it, as a range of `pool_`.
  struct Part {
    Instant begin = 0;
    Instant end = 0;
    std::size_t items_begin = 0;
    std::size_t items_end = 0;
  };

  void choose_rules();
  double item_key(ItemIndex i, ItemRule rule) const;
  bool solve(const Part& part);
  std::vector<Part> split(const Part& part);
  bool branch(const Part& part);
  bool place(const Part& part, ItemIndex i);
  bool is_out_of_effort();
  Instant choose_section(const Part& part);
  double section_key(Instant section);
  double section_key(Instant section, double num_choices) const;
  std::uint64_t signature(const Part& part) const;

  const Problem& problem_;
  Units capacity_;
  Random random_;
  ExactState state_;
  SectionRule section_rule_ = SectionRule::kConflicts;
  std::vector<double> item_keys_;  // choices with lower keys come first
  std::vector<double> conflicts_;  // by section, since the restart
  std::vector<std::uint64_t> hopeless_;  // signatures of parts, by their first bits
  std::vector<ItemIndex> pool_;
  std::int64_t num_placements_ = 0, stop_at_ = 0, stop_at_looks_ = 0, next_clock_check_ = 0;
  std::int64_t num_restarts_ = 0;
  bool is_stopped_ = false;
  const Deadline* deadline_ = nullptr;  // of the run at hand
};

}  // namespace stalloc
