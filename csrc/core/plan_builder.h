// Makes a plan from a trace, and other plans from a plan.
#pragma once

#include "core/plan.h"
#include "core/planner.h"
#include "core/slot_placement.h"
#include "core/trace.h"

namespace stalloc {

// The plan for the next run of the kind: from the trace's first event on. The period is learnt from the trace's
// last complete steps. `shares_spaces`: its streams may hand memory over to each other. Throws Error when there are fewer
// than two steps.
Plan build_plan(const Trace& trace, const PlannerOptions& options, bool shares_spaces = false);

// The same period for a run that is already under way: the slots of the first steps are dropped and the rest is
// placed anew, so that no room is kept for what such a run holds outside the arena.
Plan without_prologue(const Plan& plan, const PlannerOptions& options);

// The same plan for other largest values of its variables: slots resized by their models and placed anew around what
// stands.
Plan resized(const Plan& plan, const std::vector<Bytes>& variable_bytes, const PlannerOptions& options,
             const Standing& standing = {});

// What the variables of the plan, made from this trace, must be planned for where each batch of all its steps is to fit; those
// that share a value in the plan, as micro-steps do, have their own ones.
std::vector<Bytes> met_variables(const Plan& plan, const Trace& trace);

// The share of the requests of step `step` of the trace that the plan's table `table` foretells, in [0, 1].
double agreement(const Plan& plan, std::int32_t table, const Trace& trace, std::int64_t step);

}  // namespace stalloc
