// Steps of several kinds that come in turn: with and without a log, with and without what only every k-th step does.
#pragma once

#include "core/lifetimes.h"
#include "core/plan.h"

namespace stalloc {

// After how many steps the recorded ones repeat themselves in the number of requests of each role; 1 where they all
// have as many, and where no number of steps explains what was recorded. The first steps may be of their own kind.
std::int64_t steps_a_cycle(const Lifetimes& lifetimes, RoleIndex num_roles);

// The same run with each cycle as one step; the last complete step ends one.
Lifetimes in_cycles(const Lifetimes& lifetimes, std::int64_t steps_a_cycle);

// Cuts the tables of a plan that was built in cycles into those of `lifetimes`' steps.
void cut_tables(Plan& plan, const Lifetimes& lifetimes, std::int64_t steps_a_cycle);

}  // namespace stalloc
