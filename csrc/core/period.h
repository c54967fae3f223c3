// The repeating part of a run: one step, its blocks' lifetimes folded onto a circle, cut where least is live.
#pragma once

#include <vector>

#include "core/lifetimes.h"

namespace stalloc {

// One allocation of the repeating step. Ticks count from the step's start.
struct PeriodBlock {
  Bytes size = 0;
  RoleIndex role = 0;
  Tick birth = 0;
  Tick death = 0;           // may pass the end of the step: the block then lives into the next one
  std::int64_t position = 0;
  bool planned = false;     // repeats with the same size and is freed within two steps
  bool used_elsewhere = false;
};

struct Period {
  std::int64_t base_step = 0;  // the step of the trace that it was read from
  Tick num_ticks = 0;          // of one step
  int num_copies = 1;          // steps a turn of the circle: 2 when a block outlives its successor's birth
  Tick cut = 0;                // tick of the step at which the circle is cut
  std::vector<PeriodBlock> blocks;  // of one step, by birth
  Tick circle_ticks() const noexcept { return num_ticks * num_copies; }
};

// Reads the period from the last two complete steps: the first gives sizes and lifetimes, the second shows
// which of them repeat and when blocks that cross into it are freed. Throws Error with fewer than two steps.
Period find_period(const Lifetimes& lifetimes, RoleIndex num_roles);

}  // namespace stalloc
