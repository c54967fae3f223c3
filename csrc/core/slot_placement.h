// Gives the slots of a plan their offsets.
#pragma once

#include <vector>

#include "core/plan.h"
#include "core/planner.h"

namespace stalloc {

// What a new placement must leave as it is, because a run already uses it.
struct Standing {
  // By space: where the extents that the arena has end. No slot may lie across such an end.
  std::vector<std::vector<Bytes>> extent_ends;
  // By space: what lives in these extents and nothing may lie on.
  std::vector<std::vector<Obstacle>> taken;
  std::vector<Bytes> resident_extents;  // by space, of the plan that is replaced: residents in one that stands stay
  std::vector<bool> keeps_slot;           // by slot: those that hold tensors and keep their offsets; may be shorter
  std::vector<bool> keeps_space;  // by space: all its slots keep their offsets; may be shorter
};

// Places every slot but the unplanned ones anew and sets arena_bytes and lower_bound_bytes.
void place_slots(Plan& plan, const PlannerOptions& options, const Standing& standing = {});

}  // namespace stalloc
