// From events to blocks: who was born when, by whom freed.
#pragma once

#include <vector>

#include "core/trace.h"

namespace stalloc {

// One allocation of a trace. Ticks count the trace's allocations; step and position tell its place in the
// sequence of its (step, role).
struct Block {
  Bytes requested = 0;     // as asked for
  Tick birth = 0;
  Tick death = kNever;     // allocations made before the free; kNever: not freed in the trace
  std::int64_t step = 0;
  std::int64_t position = 0;
  RoleIndex role = 0;
  bool used_elsewhere = false;  // record_stream named another stream

  Bytes size() const noexcept { return round_up(requested, kAlignment); }
};

struct Lifetimes {
  std::vector<Block> blocks;        // by birth
  std::vector<Tick> step_begin;     // the first tick of each step, and the end of the last complete one
  std::int64_t num_steps = 0;       // complete steps

  // Blocks born in a complete step: [begin_of(step), begin_of(step + 1)), as indices and as ticks.
  std::size_t begin_of(std::int64_t step) const noexcept {
    return static_cast<std::size_t>(step_begin[static_cast<std::size_t>(step)]);
  }
  // The step in which allocation `tick` happens; num_steps after the last complete one.
  std::int64_t step_of(Tick tick) const noexcept;
};

// Frees of blocks that were never seen allocated are passed over. Throws Error on roles out of range or step
// marks out of order.
Lifetimes lifetimes_of(const Trace& trace);

}  // namespace stalloc
