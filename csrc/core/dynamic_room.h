// How much room a plan keeps for what differs from step to step.
#pragma once

#include <vector>

#include "core/period.h"

namespace stalloc {

// A recorded step on the ticks of the period's base step.
struct StepSample {
  std::int64_t step = 0;
  const Block* blocks = nullptr;         // of its allocations
  std::vector<Tick> period_tick;         // of each allocation, or -1: the base step has nothing like it
  std::vector<std::int64_t> allocation;  // of each period tick, or -1
  std::vector<Tick> next_tick;           // the first period tick that may come after so many allocations
  std::vector<Tick> deaths;              // of each allocation in period ticks; 0: it outlives the next step

  const Block* at(std::size_t tick) const noexcept { return allocation[tick] < 0 ? nullptr : blocks + allocation[tick]; }
};

// What the period's variables are worth in the step; 0 where it made no request that tells.
std::vector<Bytes> values_of(const Period& period, const StepSample& sample);

// Sets the period's rooms, as multiples of the batch's variable where there is one: at each tick what the worst of the
// steps asked for there, and as much more as the steps' spread lets expect. Rooms are few, long and nested, not one a
// request, so that what comes in another order or stays a little longer finds room too.
void size_dynamic_rooms(const std::vector<StepSample>& samples, RoleIndex num_roles, Period& period);

// Until when a dynamic request may stay that is foretold to be freed at `death`: loops that make fewer passes shift what comes
// later, but not beyond the next landmark.
Tick dynamic_end(const Period& period, Tick death) noexcept;

}  // namespace stalloc
