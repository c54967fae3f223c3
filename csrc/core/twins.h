// Slots that a run may take for one another: those of the same request in the passes of a loop.
#pragma once

#include <cstdint>
#include <vector>

#include "core/plan.h"

namespace stalloc {

inline constexpr std::int32_t kNoTwin = -1;

// For each entry of the plan's table_slots: the next entry of its table and role whose slot holds as much, whatever the batch, and
// lives as long or until the same time; kNoTwin where there is none. None where steps do not differ.
std::vector<std::int32_t> find_twins(const Plan& plan);

}  // namespace stalloc
