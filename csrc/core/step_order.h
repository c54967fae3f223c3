// Requests that threads swap from step to step.
#pragma once

#include <vector>

#include "core/lifetimes.h"

namespace stalloc {

// Where the requests of one role in one step lie, as ticks from the step's start.
struct RoleRequests {
  std::size_t begin = 0;  // of the step, as a block
  std::vector<Tick> ticks;
};

// The requests of `step` so that each stands where the one that it repeats stands in `base`; as many of both. Where
// every difference is that a few requests in a row come in another order, they are told by their sizes; else, as with
// another length, the order stays that of the step.
std::vector<Tick> in_order_of(const Lifetimes& lifetimes, const RoleRequests& base, const RoleRequests& step);

}  // namespace stalloc
