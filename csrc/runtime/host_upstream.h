// Host memory under a byte limit, with streams whose work is finished by hand: what tests stand on.
#pragma once

#include <cstring>
#include <mutex>
#include <unordered_map>

#include "runtime/host_bytes.h"
#include "runtime/upstream.h"

namespace stalloc {

class HostUpstream : public Upstream {
 public:
  explicit HostUpstream(Bytes limit_bytes) : limit_bytes_(limit_bytes) {}
  ~HostUpstream() override;

  void* allocate(Bytes size, StreamHandle stream) noexcept override;
  void deallocate(void* extent) noexcept override;
  bool fences_allowed() const noexcept override;
  Fence record_fence(StreamHandle stream) noexcept override;
  bool fence_done(Fence fence) noexcept override;
  void wait_fence(Fence fence) noexcept override;
  bool stream_wait_fence(StreamHandle waiting, Fence fence) noexcept override;
  void release_fence(Fence fence) noexcept override;
  bool fill(void* begin, Bytes size, std::uint8_t byte, StreamHandle /*stream*/) noexcept override {
    std::memset(begin, byte, static_cast<std::size_t>(size));
    return true;
  }
  Bytes first_other(const void* begin, Bytes size, std::uint8_t byte, StreamHandle /*stream*/) noexcept override {
    return first_other_byte(begin, size, byte);
  }

  void finish_stream(StreamHandle stream);  // all work submitted to it so far is done
  void set_capturing(bool value);
  Bytes allocated_bytes() const;

 private:
  mutable std::mutex mutex_;  // guards all below
  Bytes limit_bytes_;
  Bytes allocated_bytes_ = 0;
  bool capturing_ = false;
  Fence last_fence_ = 0;
  std::unordered_map<void*, Bytes> extents_;
  std::unordered_map<Fence, StreamHandle> open_fences_;
};

}  // namespace stalloc
