// Gives the slots of a plan their offsets.
#pragma once

#include "core/plan.h"
#include "core/planner.h"

namespace stalloc {

// Places every slot but the unplanned ones anew and sets arena_bytes and lower_bound_bytes.
void place_slots(Plan& plan, const PlannerOptions& options);

}  // namespace stalloc
