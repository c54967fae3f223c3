// Makes a plan from a trace: finds the period, cuts it where least is live, and places what lives in it.
#pragma once

#include "core/plan.h"
#include "core/planner.h"
#include "core/trace.h"

namespace stalloc {

struct PlanBuilderOptions {
  bool include_prologue = false;  // plan from the first event on, for the next run; else only the period
  PlannerOptions planner;
};

// The period is learnt from the trace's last two complete steps. Throws Error when there are fewer.
Plan build_plan(const Trace& trace, const PlanBuilderOptions& options);

// The same period for a run that is already under way: the prologue's slots are dropped and the rest is placed
// anew, so that no room is kept for what such a run holds outside the arena.
Plan without_prologue(const Plan& plan, const PlannerOptions& options);

// The share of the requests of step `step` of the trace that the plan's table `table` foretells, in [0, 1].
double agreement(const Plan& plan, std::int32_t table, const Trace& trace, std::int64_t step);

}  // namespace stalloc
