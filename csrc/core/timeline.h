// The plan's timeline: one turn of the period, with room between its ticks for what only the first steps do.
#pragma once

#include <vector>

#include "core/period.h"

namespace stalloc {

// Where the allocations of one recorded step lie on the turn.
struct StepTrack {
  int copy = 0;                   // which step of the turn it is
  std::int64_t turn = 0;          // how many turns after the base step's; negative before it
  std::vector<Tick> period_tick;  // of each allocation; -1: it belongs to this step alone (an extra)
  std::vector<Tick> gap;          // the period tick that comes next at that moment, also one past the last entry
  std::vector<Tick> order;        // its number among the extras of its gap
  std::size_t num_construction = 0;  // leading allocations before the period begins
};

class Timeline {
 public:
  // The steps before the period's base step are aligned with the period; the others repeat it.
  Timeline(const Lifetimes& lifetimes, const Period& period, RoleIndex num_roles);

  Tick turn_ticks() const noexcept { return starts_.back(); }
  Tick num_construction() const noexcept { return num_construction_; }
  const StepTrack& track(std::int64_t step) const noexcept { return tracks_[static_cast<std::size_t>(step)]; }

  // Ticks on an endless sequence of turns. A period tick may pass the end of its step.
  Tick period_tick(int copy, Tick tick) const noexcept;
  Tick extra_birth(std::int64_t step, std::size_t allocation) const noexcept;
  // The moment before allocation `tick` of the trace; kNever when it lies after the recorded steps or in construction.
  Tick moment(Tick tick) const noexcept;

 private:
  void follow_step(std::int64_t step, RoleIndex num_roles);
  void make_room_for_extras();
  std::size_t gap_index(int copy, Tick gap) const noexcept;

  const Lifetimes& lifetimes_;
  const Period& period_;
  std::vector<StepTrack> tracks_;  // of the steps before the base step
  std::vector<Tick> starts_;       // of each (copy, period tick): where its gap begins; and the turn's end
  std::vector<Tick> num_extras_;   // of each (copy, period tick)
  Tick num_construction_ = 0;
};

}  // namespace stalloc
