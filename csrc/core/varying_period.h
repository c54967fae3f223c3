// The period of steps that differ in the number of their requests: loops over experts, capacities that follow a routing.
#pragma once

#include <vector>

#include "core/period.h"

namespace stalloc {

// Fills the blocks of `period`, whose base step is one of `steps` (ascending, all complete), from all steps that have
// enough in common with it. What every step does alike is planned; what differs is dynamic: its lifetime is known, its
// size is not, and room is kept for it. False, with nothing changed, when no other step is like the base step.
bool fit_varying_steps(const Lifetimes& lifetimes, const std::vector<std::int64_t>& steps, RoleIndex num_roles,
                       Period& period);

// As align_step, for such a period: a dynamic request is paired whatever its size, a planned one if its size is what the
// period foretells.
std::vector<Tick> align_varying_step(const Lifetimes& lifetimes, std::int64_t step, const Period& period,
                                     RoleIndex num_roles);

}  // namespace stalloc
