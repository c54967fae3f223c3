#include "runtime/host_upstream.h"

#include <cstdlib>

namespace stalloc {

HostUpstream::~HostUpstream() {
  for (const auto& [extent, size] : extents_) std::free(extent);
}

void* HostUpstream::allocate(Bytes size, StreamHandle) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (size > limit_bytes_ - allocated_bytes_) return nullptr;
  void* extent = std::aligned_alloc(static_cast<std::size_t>(kAlignment), static_cast<std::size_t>(size));
  if (extent == nullptr) return nullptr;
  extents_[extent] = size;
  allocated_bytes_ += size;
  return extent;
}

void HostUpstream::deallocate(void* extent) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = extents_.find(extent);
  if (found == extents_.end()) return;
  allocated_bytes_ -= found->second;
  extents_.erase(found);
  std::free(extent);
}

bool HostUpstream::fences_allowed() const noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  return !capturing_;
}

Fence HostUpstream::record_fence(StreamHandle stream) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  open_fences_[++last_fence_] = stream;
  return last_fence_;
}

bool HostUpstream::fence_done(Fence fence) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  return open_fences_.count(fence) == 0;
}

void HostUpstream::wait_fence(Fence fence) noexcept { release_fence(fence); }

// Host memory is used in the order of the program: there is nothing to wait for.
bool HostUpstream::stream_wait_fence(StreamHandle, Fence) noexcept { return true; }

void HostUpstream::release_fence(Fence fence) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  open_fences_.erase(fence);
}

void HostUpstream::finish_stream(StreamHandle stream) {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (auto at = open_fences_.begin(); at != open_fences_.end();)
    at = at->second == stream ? open_fences_.erase(at) : std::next(at);
}

void HostUpstream::set_capturing(bool value) {
  const std::lock_guard<std::mutex> lock(mutex_);
  capturing_ = value;
}

Bytes HostUpstream::allocated_bytes() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return allocated_bytes_;
}

}  // namespace stalloc
