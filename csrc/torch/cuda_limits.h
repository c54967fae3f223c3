// Whether the native allocator could fulfil a request, asked beforehand: a request that it fails has side effects
// (observers run, num_ooms and num_alloc_retries count, its cache is flushed).
#pragma once

#include "core/types.h"
#include "torch/compat.h"

namespace stalloc {

// What a request of `size` makes the native allocator take from the driver when nothing cached fits it.
Bytes native_segment_bytes(Bytes size) noexcept;

// True when the driver and the memory fraction leave room for a new segment for `size` bytes. Asks the driver:
// microseconds, and `device` must be current.
bool has_room_for_segment(native::CUDAAllocator& native, c10::DeviceIndex device, Bytes size);

// True when a cached block of any stream is as large as `size`.
bool has_cached_block(native::CUDAAllocator& native, c10::DeviceIndex device, Bytes size);

}  // namespace stalloc
