#include "torch/cuda_limits.h"

#include <c10/cuda/CUDAException.h>

#include "torch/cuda_stats.h"

namespace stalloc {
namespace {

// The native allocator's classes: small requests share 2 MiB segments, middle ones 20 MiB segments, large ones
// have a segment of their own, rounded up to 2 MiB.
constexpr Bytes kMiB = Bytes{1} << 20;
constexpr Bytes kSmallSegment = 2 * kMiB;
constexpr Bytes kMiddleSegment = 20 * kMiB;
constexpr Bytes kLargestMiddle = 10 * kMiB;

}  // namespace

Bytes native_segment_bytes(Bytes size) noexcept {
  if (size <= kSmallRequest) return kSmallSegment;
  return size < kLargestMiddle ? kMiddleSegment : round_up(size, kSmallSegment);
}

bool has_room_for_segment(native::CUDAAllocator& native, c10::DeviceIndex device, Bytes size) {
  std::size_t free_bytes = 0;
  std::size_t total_bytes = 0;
  C10_CUDA_CHECK(cudaMemGetInfo(&free_bytes, &total_bytes));
  const Bytes segment = native_segment_bytes(size);
  if (segment > static_cast<Bytes>(free_bytes)) return false;
  const double fraction = native.getMemoryFraction(device);
  if (fraction >= 1.0) return true;
  const Bytes allowed = static_cast<Bytes>(fraction * static_cast<double>(total_bytes));
  return current(native.getDeviceStats(device).reserved_bytes) + segment <= allowed;
}

bool has_cached_block(native::CUDAAllocator& native, c10::DeviceIndex device, Bytes size) {
  std::size_t largest = 1;  // 0 would ask the driver and count its free memory as cached
  native.cacheInfo(device, &largest);
  return static_cast<Bytes>(largest) >= size;
}

}  // namespace stalloc
