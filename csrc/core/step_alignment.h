// Pairs the requests of two recorded steps that need not agree in number or size.
#pragma once

#include <cstdint>
#include <vector>

#include "core/lifetimes.h"
#include "core/size_kinds.h"

namespace stalloc {

// For each allocation of step `from`, the allocation of step `to` that it repeats, or -1; both count from their step's
// start, and each role's pairs rise. What a program does is told by how long its blocks live, whatever their sizes
// are: in a loop over experts each pass asks for other sizes and frees in the same order. Paired from the back, so that
// construction in front of a first step stays alone. All -1 for a role whose steps have little in common.
std::vector<Tick> pair_steps(const Lifetimes& lifetimes, std::int64_t from, std::int64_t to, RoleIndex num_roles);

// The same once it is known what every step asks for: only what is of one kind is paired. `by_lives`: what the function above
// gave; it stands where kinds part the steps, as they do where a variable's value was mistaken.
std::vector<Tick> pair_steps(const Lifetimes& lifetimes, std::int64_t from, std::int64_t to, RoleIndex num_roles,
                             const SizeKinds& from_kinds, const SizeKinds& to_kinds, std::vector<Tick> by_lives);

}  // namespace stalloc
