// Every difference between the versions of torch that we build against, 2.8 to 2.15. No other file asks for one.
//
// What changed in c10::cuda::CUDACachingAllocator::CUDAAllocator:
//   2.9   derives from DeviceAllocator, which adds recordStream(DataPtr, c10::Stream)
//   2.10  getExpandableSegmentSizes, setNoSplit, setUserMetadata, getUserMetadata, getMemoryInfo
//   2.11  snapshot(include_traces), recordHistory(skip_actions), setUseOnOOM(bool); pools share their allocator
//   2.12  getContextForPointer, attachOomRejectionObserver
//   2.13  markCaptureBegin, markCaptureEnd, allocateWithAddress
//   2.14  supportsUserMetadata, annotateMemory
#pragma once

#include <c10/cuda/CUDAAllocatorConfig.h>
#include <c10/cuda/CUDACachingAllocator.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/types.h"

#if __has_include(<torch/headeronly/version.h>)
#include <torch/headeronly/version.h>
#else
#include <torch/csrc/api/include/torch/version.h>
#endif

#define STALLOC_TORCH_AT_LEAST(minor) (TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= (minor))
#if !STALLOC_TORCH_AT_LEAST(8)
#error "stalloc-accel needs torch 2.8 or later."
#endif

// STALLOC_SINCE_2_10(text) is `text` when built against torch 2.10 or later, and nothing before.
#if STALLOC_TORCH_AT_LEAST(9)
#define STALLOC_SINCE_2_9(...) __VA_ARGS__
#else
#define STALLOC_SINCE_2_9(...)
#endif
#if STALLOC_TORCH_AT_LEAST(10)
#define STALLOC_SINCE_2_10(...) __VA_ARGS__
#else
#define STALLOC_SINCE_2_10(...)
#endif
#if STALLOC_TORCH_AT_LEAST(11)
#define STALLOC_SINCE_2_11(...) __VA_ARGS__
#else
#define STALLOC_SINCE_2_11(...)
#endif
#if STALLOC_TORCH_AT_LEAST(12)
#define STALLOC_SINCE_2_12(...) __VA_ARGS__
#else
#define STALLOC_SINCE_2_12(...)
#endif
#if STALLOC_TORCH_AT_LEAST(13)
#define STALLOC_SINCE_2_13(...) __VA_ARGS__
#else
#define STALLOC_SINCE_2_13(...)
#endif
#if STALLOC_TORCH_AT_LEAST(14)
#define STALLOC_SINCE_2_14(...) __VA_ARGS__
#else
#define STALLOC_SINCE_2_14(...)
#endif

namespace stalloc {

namespace native = c10::cuda::CUDACachingAllocator;
using c10::CachingDeviceAllocator::DeviceStats;
using c10::cuda::MempoolId_t;

// The allocator of a memory pool: shared with the pool since 2.11.
#if STALLOC_TORCH_AT_LEAST(11)
using PoolAllocator = std::shared_ptr<native::CUDAAllocator>;
#else
using PoolAllocator = native::CUDAAllocator*;
#endif

// A segment's and a trace entry's stream: cudaStream_t until 2.10, void* since.
inline StreamHandle stream_handle(const void* stream) { return reinterpret_cast<StreamHandle>(stream); }
inline cudaStream_t cuda_stream(StreamHandle handle) { return reinterpret_cast<cudaStream_t>(handle); }

inline native::SnapshotInfo take_snapshot(native::CUDAAllocator& allocator, MempoolId_t pool, bool with_traces) {
#if STALLOC_TORCH_AT_LEAST(11)
  return allocator.snapshot(pool, with_traces);
#else
  (void)with_traces;
  return allocator.snapshot(pool);
#endif
}

// The text of the settings in force, as in PYTORCH_CUDA_ALLOC_CONF. native::setAllocatorSettings takes one.
inline std::string allocator_settings() {
#if STALLOC_TORCH_AT_LEAST(10)
  return c10::CachingAllocator::AcceleratorAllocatorConfig::last_allocator_settings();
#else
  return native::CUDAAllocatorConfig::last_allocator_settings();
#endif
}

inline std::string user_metadata(native::CUDAAllocator& allocator) {
#if STALLOC_TORCH_AT_LEAST(10)
  return allocator.getUserMetadata();
#else
  (void)allocator;
  return {};
#endif
}

inline native::TraceEntry make_trace_entry(native::TraceEntry::Action action, c10::DeviceIndex device,
                                           std::uintptr_t address, std::size_t size, StreamHandle stream,
                                           std::shared_ptr<c10::GatheredContext> context, std::string compile_context,
                                           std::string metadata) {
#if STALLOC_TORCH_AT_LEAST(10)
  return {action, device, address, size, cuda_stream(stream), MempoolId_t{0, 0}, c10::getApproximateTime(),
          std::move(context), std::move(compile_context), std::move(metadata)};
#else
  (void)metadata;
  return {action, device, address, size, cuda_stream(stream), MempoolId_t{0, 0}, c10::getApproximateTime(),
          std::move(context), std::move(compile_context)};
#endif
}

}  // namespace stalloc
