#include "torch/cuda_upstream.h"

#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>

#include <algorithm>

#include "runtime/host_bytes.h"
#include "torch/cuda_limits.h"

namespace stalloc {
namespace {

// Handles of another device's streams, and fences on them, carry that device plus one in the top byte.
constexpr int kDeviceShift = 56;
constexpr Bytes kLargeExtent = Bytes{32} << 20;  // below it a flush, which waits for the device, is not worth it
constexpr std::uint64_t tag_of(c10::DeviceIndex device) noexcept {
  return (static_cast<std::uint64_t>(device) + 1) << kDeviceShift;
}
constexpr std::uint64_t untagged(std::uint64_t value) noexcept {
  return value & ((std::uint64_t{1} << kDeviceShift) - 1);
}

static_assert(sizeof(cudaEvent_t) <= sizeof(Fence));
cudaEvent_t event_of(Fence fence) noexcept { return reinterpret_cast<cudaEvent_t>(untagged(fence)); }

// A call that was refused leaves its error behind; the next check in torch would report it as its own.
bool succeeded(cudaError_t error) noexcept {
  if (error == cudaSuccess) return true;
  (void)cudaGetLastError();
  return false;
}

}  // namespace

// --- extents ---

void* CudaUpstream::allocate(Bytes size, StreamHandle stream) noexcept {
  try {
    // During a capture the memory would belong to the capture's pool. The engine asks again in a later step.
    if (size <= 0 || routes_.any_open() || !native_.isEnabled()) return nullptr;
    const c10::cuda::CUDAGuard guard(device_);
    // An arena is taken instead of what the cache holds, not beside it. What ended with the last step is cached now.
    if (size >= kLargeExtent && !has_cached_block(native_, device_, size)) native_.emptyCache({0, 0});
    if (!make_room(size)) return nullptr;
    if (before_extent_) before_extent_();
    void* base = native_.raw_alloc_with_stream(static_cast<std::size_t>(size), cuda_stream(stream));
    try {
      Extent extent{reinterpret_cast<std::uintptr_t>(base), size, stream, size};
      extent.block_size = block_size_of(extent);
      enter(extent);
    } catch (const std::exception&) {
      native_deleter_(base);
      return nullptr;
    }
    return base;
  } catch (...) {
    return nullptr;  // no room after all
  }
}

// Extents are few, so that a look at all segments costs nothing that counts.
Bytes CudaUpstream::block_size_of(const Extent& extent) const {
  const native::SnapshotInfo info = take_snapshot(native_, {0, 0}, false);
  for (const native::SegmentInfo& segment : info.segments) {
    std::uintptr_t address = segment.address;
    if (extent.base - address >= segment.total_size) continue;
    for (const native::BlockInfo& block : segment.blocks) {
      if (address == extent.base) return static_cast<Bytes>(block.size);
      address += block.size;
    }
  }
  return extent.size;
}

void CudaUpstream::enter(const Extent& extent) {
  const std::lock_guard<std::mutex> lock(extents_mutex_);
  extents_.reserve(extents_.size() + 1);
  const bool is_known = std::any_of(distinct_extents_.begin(), distinct_extents_.end(), [&](const Extent& other) {
    return other.base == extent.base && other.size == extent.size;
  });
  if (!is_known) distinct_extents_.push_back(extent);
  const auto at = std::find_if(extents_.begin(), extents_.end(),
                               [&](const Extent& other) { return other.base > extent.base; });
  extents_.insert(at, extent);
  const std::size_t size_class = extent.size > kSmallRequest ? 1 : 0;
  ++taken_.count[size_class];
  taken_.bytes[size_class] += extent.block_size;
  num_held_.fetch_add(1, std::memory_order_relaxed);
  held_bytes_.fetch_add(extent.block_size, std::memory_order_relaxed);
}

// True when the request can be expected to succeed, after flushing the native cache where that is what it takes: if
// native had to flush in the midst of the request, that would count as a retry.
bool CudaUpstream::make_room(Bytes size) {
  if (has_room_for_segment(native_, device_, size)) return true;
  native_.emptyCache({0, 0});
  // What is cached still is part of a segment in use. It may be another stream's: then the request fails after all.
  return has_room_for_segment(native_, device_, size) || has_cached_block(native_, device_, size);
}

void CudaUpstream::deallocate(void* extent) noexcept {
  {
    const std::lock_guard<std::mutex> lock(extents_mutex_);
    const auto base = reinterpret_cast<std::uintptr_t>(extent);
    const auto found = std::find_if(extents_.begin(), extents_.end(), [&](const Extent& e) { return e.base == base; });
    if (found != extents_.end()) {
      num_held_.fetch_sub(1, std::memory_order_relaxed);
      held_bytes_.fetch_sub(found->block_size, std::memory_order_relaxed);
      extents_.erase(found);
    }
  }
  // Not raw_delete: that one follows torch's enable switch, and the block came from the cache.
  native_deleter_(extent);
}

std::optional<CudaUpstream::Extent> CudaUpstream::extent_of(const void* ptr) const {
  const auto address = reinterpret_cast<std::uintptr_t>(ptr);
  const std::lock_guard<std::mutex> lock(extents_mutex_);
  for (const Extent& extent : extents_)
    if (address - extent.base < static_cast<std::uintptr_t>(extent.size)) return extent;
  return std::nullopt;
}

std::vector<CudaUpstream::Extent> CudaUpstream::extents() const {
  const std::lock_guard<std::mutex> lock(extents_mutex_);
  return extents_;
}

std::vector<CudaUpstream::Extent> CudaUpstream::distinct_extents() const {
  const std::lock_guard<std::mutex> lock(extents_mutex_);
  return distinct_extents_;
}

CudaUpstream::Taken CudaUpstream::taken() const {
  const std::lock_guard<std::mutex> lock(extents_mutex_);
  return taken_;
}

CudaUpstream::Taken CudaUpstream::held() const {
  Taken held;
  const std::lock_guard<std::mutex> lock(extents_mutex_);
  for (const Extent& extent : extents_) {
    const std::size_t size_class = extent.size > kSmallRequest ? 1 : 0;
    ++held.count[size_class];
    held.bytes[size_class] += extent.block_size;
  }
  return held;
}

// --- fences ---

StreamHandle CudaUpstream::handle_of(c10::cuda::CUDAStream stream) const noexcept {
  const StreamHandle handle = stream_handle(stream.stream());
  if (stream.device_index() == device_) return handle;
  return handle | tag_of(stream.device_index());
}

Fence CudaUpstream::record_fence(StreamHandle stream) noexcept {
  const CudaPoolRoutes::EventScope scope(routes_);
  if (!scope.allowed()) return 0;
  const std::uint64_t foreign = stream >> kDeviceShift;
  const auto device = foreign == 0 ? device_ : static_cast<c10::DeviceIndex>(foreign - 1);
  c10::DeviceIndex previous = 0;
  if (!succeeded(c10::cuda::GetDevice(&previous)) || !succeeded(c10::cuda::SetDevice(device))) return 0;
  cudaEvent_t event = foreign == 0 ? take_spare_event() : nullptr;
  if (event == nullptr && !succeeded(cudaEventCreateWithFlags(&event, cudaEventDisableTiming))) event = nullptr;
  Fence fence = 0;
  if (event != nullptr) {
    fence = reinterpret_cast<Fence>(event) | (foreign == 0 ? 0 : tag_of(device));
    if (!succeeded(cudaEventRecord(event, cuda_stream(untagged(stream))))) {
      release_fence(fence);
      fence = 0;
    }
  }
  (void)succeeded(c10::cuda::MaybeSetDevice(previous));
  return fence;
}

cudaEvent_t CudaUpstream::take_spare_event() noexcept {
  const std::lock_guard<std::mutex> lock(events_mutex_);
  if (spare_events_.empty()) return nullptr;
  cudaEvent_t event = spare_events_.back();
  spare_events_.pop_back();
  return event;
}

bool CudaUpstream::fence_done(Fence fence) noexcept {
  const CudaPoolRoutes::EventScope scope(routes_);
  return scope.allowed() && succeeded(cudaEventQuery(event_of(fence)));
}

void CudaUpstream::wait_fence(Fence fence) noexcept { (void)succeeded(cudaEventSynchronize(event_of(fence))); }

// --- the debug mode ---

bool CudaUpstream::fill(void* begin, Bytes size, std::uint8_t byte, StreamHandle stream) noexcept {
  const CudaPoolRoutes::EventScope scope(routes_);
  const c10::cuda::CUDAGuard guard(device_);
  return scope.allowed() &&
         succeeded(cudaMemsetAsync(begin, byte, static_cast<std::size_t>(size), cuda_stream(untagged(stream))));
}

Bytes CudaUpstream::first_other(const void* begin, Bytes size, std::uint8_t byte, StreamHandle stream) noexcept {
  std::array<std::uint8_t, 4096> seen;
  const CudaPoolRoutes::EventScope scope(routes_);
  const c10::cuda::CUDAGuard guard(device_);
  const Bytes looked_at = std::min(size, static_cast<Bytes>(seen.size()));
  cudaStream_t on = cuda_stream(untagged(stream));
  if (looked_at <= 0 || !scope.allowed() ||
      !succeeded(cudaMemcpyAsync(seen.data(), begin, static_cast<std::size_t>(looked_at), cudaMemcpyDeviceToHost, on)) ||
      !succeeded(cudaStreamSynchronize(on)))
    return size;
  const Bytes found = first_other_byte(seen.data(), looked_at, byte);
  return found == looked_at ? size : found;
}

bool CudaUpstream::stream_wait_fence(StreamHandle waiting, Fence fence) noexcept {
  const CudaPoolRoutes::EventScope scope(routes_);
  if (!scope.allowed()) return false;
  const std::uint64_t foreign = waiting >> kDeviceShift;
  const auto device = foreign == 0 ? device_ : static_cast<c10::DeviceIndex>(foreign - 1);
  c10::DeviceIndex previous = 0;
  if (!succeeded(c10::cuda::GetDevice(&previous)) || !succeeded(c10::cuda::SetDevice(device))) return false;
  const bool waits = succeeded(cudaStreamWaitEvent(cuda_stream(untagged(waiting)), event_of(fence), 0));
  (void)succeeded(c10::cuda::MaybeSetDevice(previous));
  return waits;
}

void CudaUpstream::release_fence(Fence fence) noexcept {
  if (fence != untagged(fence)) {  // an event of another device, rare: not kept
    (void)succeeded(cudaEventDestroy(event_of(fence)));
    return;
  }
  try {
    const std::lock_guard<std::mutex> lock(events_mutex_);
    spare_events_.push_back(event_of(fence));
  } catch (const std::bad_alloc&) {
    // The event is leaked, as all are in the end.
  }
}

}  // namespace stalloc
