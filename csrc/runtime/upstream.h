// What the engine stands on: it takes extents from it and asks it about streams. The one virtual seam.
#pragma once

#include <cstdint>

#include "core/types.h"

namespace stalloc {

using Fence = std::uint64_t;  // work submitted to a stream up to some moment; 0 is none

class Upstream {
 public:
  virtual ~Upstream() = default;

  // An extent of `size` bytes for use on `stream`, aligned to kAlignment; nullptr when there is no room.
  // May be slow. Called without any lock of ours held.
  virtual void* allocate(Bytes size, StreamHandle stream) noexcept = 0;
  virtual void deallocate(void* extent) noexcept = 0;

  // False while a stream of this process is being captured: then no fence call is allowed on any thread.
  virtual bool fences_allowed() const noexcept = 0;
  // A fence behind the work submitted to `stream` so far; 0 when it could not be made.
  virtual Fence record_fence(StreamHandle stream) noexcept = 0;
  virtual bool fence_done(Fence fence) noexcept = 0;  // never blocks
  virtual void wait_fence(Fence fence) noexcept = 0;  // blocks the host
  // What is submitted to `waiting` from now on starts after the fence, on the device; the host goes on. False when it could
  // not be made to wait.
  virtual bool stream_wait_fence(StreamHandle waiting, Fence fence) noexcept = 0;
  virtual void release_fence(Fence fence) noexcept = 0;

  // For the debug mode; `stream` is the one that the bytes are used on. Memory that cannot be reached has neither.
  // False: it could not be filled now.
  virtual bool fill(void* /*begin*/, Bytes /*size*/, std::uint8_t /*byte*/, StreamHandle /*stream*/) noexcept { return false; }
  // The index of the first byte, among those looked at, that is not `byte`; `size` where there is none.
  virtual Bytes first_other(const void* /*begin*/, Bytes size, std::uint8_t /*byte*/, StreamHandle /*stream*/) noexcept {
    return size;
  }
};

}  // namespace stalloc
