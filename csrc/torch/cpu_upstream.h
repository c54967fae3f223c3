// Extents of host memory. The CPU has no streams: whatever was freed is done with.
#pragma once

#include <cstring>

#include "runtime/host_bytes.h"
#include "runtime/upstream.h"

namespace stalloc {

class CpuUpstream final : public Upstream {
 public:
  // Page-aligned, so more than kAlignment. Taken from the C library, not from torch's allocator: torch's gives
  // 64-byte alignment only and tells the profiler about an out-of-memory that is nobody's concern.
  void* allocate(Bytes size, StreamHandle stream) noexcept override;
  void deallocate(void* extent) noexcept override;

  bool fences_allowed() const noexcept override { return true; }
  Fence record_fence(StreamHandle /*stream*/) noexcept override { return 0; }
  bool fence_done(Fence /*fence*/) noexcept override { return true; }
  void wait_fence(Fence /*fence*/) noexcept override {}
  bool stream_wait_fence(StreamHandle /*waiting*/, Fence /*fence*/) noexcept override { return false; }  // a thread is no stream
  void release_fence(Fence /*fence*/) noexcept override {}
  bool fill(void* begin, Bytes size, std::uint8_t byte, StreamHandle /*stream*/) noexcept override {
    std::memset(begin, byte, static_cast<std::size_t>(size));
    return true;
  }
  Bytes first_other(const void* begin, Bytes size, std::uint8_t byte, StreamHandle /*stream*/) noexcept override {
    return first_other_byte(begin, size, byte);
  }
};

}  // namespace stalloc
