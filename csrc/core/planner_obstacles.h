// Turns ranges that may overlap each other into items that do not.
#pragma once

#include <vector>

#include "core/planner_problem.h"

namespace stalloc {

struct FixedRange {
  Instant lower = 0;
  Instant upper = 0;
  Units begin = 0;
  Units end = 0;
};

// Appends what the ranges cover to the problem as fixed items that share no byte at any instant.
void add_fixed_items(Problem& problem, const std::vector<FixedRange>& ranges);

}  // namespace stalloc
