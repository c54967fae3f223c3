// Memory that goes from one stream to another: where a plan does that, and when a run must record events for it.
#pragma once

#include <vector>

#include "core/last_frees.h"
#include "core/plan.h"

namespace stalloc {

// Smaller slots keep to a part of the space that belongs to their role alone: they would cost an event each and win nothing.
inline constexpr Bytes kLeastHandover = Bytes{1} << 20;

// By slot: true where another role's slot takes over pages when this slot was the last of them to be freed. Events recorded
// at that free let the other stream wait for no more than it must. Only a hint: without one a run records later.
std::vector<bool> find_handovers(const Plan& plan);

}  // namespace stalloc
