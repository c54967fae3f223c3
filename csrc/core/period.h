// The repeating part of a run, read from its last steps: what every step asks for and for how long.
#pragma once

#include <vector>

#include "core/lifetimes.h"
#include "core/plan.h"

namespace stalloc {

// One allocation of the repeating step. Ticks count from the step's start.
struct PeriodBlock {
  Bytes size = 0;  // the most it asks for, rounded; at the largest variables met
  SizeModel model;
  RoleIndex role = 0;
  Tick birth = 0;
  Tick death = 0;        // may pass the end of the step: the block then lives into the next one
  bool used_elsewhere = false;  // another stream's work keeps it beyond its free
  bool planned = false;  // repeats, with a size that can be foretold, and is freed within two steps
  // The number or the size of such requests differs from step to step. Their lifetimes are known, and the plan keeps
  // room for as much as they need together.
  bool dynamic = false;
};

// Room for dynamic requests during [birth, death), ticks of one step. What is kept at a tick is the sum over its rooms.
struct DynamicRoom {
  RoleIndex role = 0;
  Tick birth = 0;
  Tick death = 0;
  Bytes size = 0;  // at the largest variables met
  SizeModel model;
};

// A block that record_stream named comes back when the other stream has got there: later than its free by a time that only
// the device knows. The plan keeps its place for this share of a step more, as most need in DeepSpeed ZeRO-3; the slowest
// were seen after 18% of a step's allocations, and a large request that comes before them waits for them on the device.
inline constexpr Tick kStreamDelayShare = 64;

struct Period {
  std::int64_t base_step = 0;  // the step of the trace that it was read from
  Tick num_ticks = 0;          // of one step
  int num_copies = 1;          // steps a turn of the plan's window: 2 when a block outlives its successor's birth
  std::vector<PeriodBlock> blocks;    // of one step, by birth
  std::vector<DynamicRoom> rooms;
  std::vector<Tick> landmarks;  // ticks at which every step is known to be there, where steps differ
  std::vector<Bytes> variable_bytes;  // the largest value met of each variable
  bool varies = false;  // the steps differ in the number of their requests
};

// The step before the last gives the sequence, the last shows what repeats and when blocks that cross into it are
// freed; earlier steps of the same shape tell how sizes move. Where the last steps differ in shape, the one
// that the others differ from least gives the sequence. Throws Error with fewer than two steps.
Period find_period(const Lifetimes& lifetimes, RoleIndex num_roles);

// Whether too many of its sizes follow nothing that came before: steps that are routed are of one length by chance.
bool is_routed(const Period& period);

// For each allocation of a recorded step, the tick of the period whose request it repeats, or -1. What comes before
// the period's first request (construction, in the first step) stays at -1.
std::vector<Tick> align_step(const Lifetimes& lifetimes, std::int64_t step, const Period& period, RoleIndex num_roles);

}  // namespace stalloc
