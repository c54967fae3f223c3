// Pairs the requests of two recorded steps that need not agree in number or size.
#pragma once

#include <cstdint>
#include <vector>

#include "core/lifetimes.h"

namespace stalloc {

// For each allocation of step `from`, the allocation of step `to` that it repeats, or -1; both count from their step's
// start, and each role's pairs rise. What a program does is told by how long its blocks live, whatever their sizes
// are: in a loop over experts each pass asks for other sizes and frees in the same order. Paired from the back, so that
// construction in front of a first step stays alone. All -1 for a role whose steps have little in common.
std::vector<Tick> pair_steps(const Lifetimes& lifetimes, std::int64_t from, std::int64_t to, RoleIndex num_roles);

}  // namespace stalloc
