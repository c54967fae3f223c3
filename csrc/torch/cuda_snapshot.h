// Puts the blocks that we serve into a snapshot of the native allocator, which sees each extent as one block.
#pragma once

#include <functional>

#include "runtime/engine.h"
#include "torch/compat.h"
#include "torch/cuda_history.h"
#include "torch/cuda_upstream.h"

namespace stalloc {

// Replaces the block of each extent of `device` by the blocks in it.
void split_extents(native::SnapshotInfo& snapshot, const CudaUpstream& upstream, const Engine& engine,
                   const CudaHistory& history);

// Merges our trace entries by time, and takes out those about the extents themselves. `to_us` turns a clock's ticks
// into microseconds since 1970.
void merge_traces(std::vector<native::TraceEntry>& trace, const CudaUpstream& upstream, const CudaHistory& history,
                  const std::function<std::int64_t(c10::approx_time_t)>& to_us);

}  // namespace stalloc
