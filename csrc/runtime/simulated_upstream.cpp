#include "runtime/simulated_upstream.h"

namespace stalloc {

void* SimulatedUpstream::allocate(Bytes size, StreamHandle stream) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  // As on the device: an arena is taken instead of what the cache holds, not beside it.
  constexpr Bytes kLargeExtent = Bytes{32} << 20;
  if (size >= kLargeExtent) torch_.empty_cache();
  SimulatedBlock* block = torch_.allocate(size, stream);
  if (block == nullptr) return nullptr;
  // An address and nothing more: what is behind it is never read.
  void* extent = reinterpret_cast<void*>(block->address);
  extents_[extent] = block;
  streams_.adopt(block->address, block->size, block->stream);
  extent_bytes_ += block->size;
  return extent;
}

void SimulatedUpstream::deallocate(void* extent) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto it = extents_.find(extent);
  if (it == extents_.end()) return;
  SimulatedBlock* block = it->second;
  extents_.erase(it);
  std::string found = streams_.forget(block->address, block->size, block->stream);
  if (offence_.empty()) offence_ = std::move(found);
  extent_bytes_ -= block->size;
  torch_.complete_free(torch_.request_free(block));
}

Fence SimulatedUpstream::record_fence(StreamHandle stream) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  return faults_.refuses_fences ? Fence{0} : streams_.record_fence(stream);
}

bool SimulatedUpstream::fence_done(Fence fence) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  return streams_.fence_done(fence);
}

void SimulatedUpstream::wait_fence(Fence fence) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  streams_.wait_on_host(fence);
}

bool SimulatedUpstream::stream_wait_fence(StreamHandle waiting, Fence fence) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!faults_.drops_waits) streams_.wait_on_stream(waiting, fence);
  return true;
}

void SimulatedUpstream::release_fence(Fence fence) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  streams_.release_fence(fence);
}

}  // namespace stalloc
