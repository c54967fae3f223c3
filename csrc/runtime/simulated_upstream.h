// The upstream of a replay: extents come from the model of the native allocator, fences from the model of the
// streams. Thread-safe, so that it serves the engine's concurrent tests too.
#pragma once

#include <mutex>
#include <string>
#include <unordered_map>

#include "runtime/simulated_allocator.h"
#include "runtime/simulated_streams.h"
#include "runtime/upstream.h"

namespace stalloc {

class SimulatedUpstream final : public Upstream {
 public:
  explicit SimulatedUpstream(Bytes limit_bytes = 0, const CachingOptions& options = {}, bool handover_audited = false)
      : device_(limit_bytes), torch_(device_, options), streams_(handover_audited) {}

  void* allocate(Bytes size, StreamHandle stream) noexcept override;
  void deallocate(void* extent) noexcept override;
  bool fences_allowed() const noexcept override { return !faults_.is_capturing; }
  Fence record_fence(StreamHandle stream) noexcept override;
  bool fence_done(Fence fence) noexcept override;
  void wait_fence(Fence fence) noexcept override;
  bool stream_wait_fence(StreamHandle waiting, Fence fence) noexcept override;
  void release_fence(Fence fence) noexcept override;

  // What may go wrong, for tests.
  struct Faults {
    bool drops_waits = false;     // a stream is said to wait and does not
    bool refuses_fences = false;  // as a driver out of memory would
    bool is_capturing = false;
  };
  void set_faults(const Faults& faults) noexcept { faults_ = faults; }

  // For the one thread that replays; not while another uses the engine.
  SimulatedDevice& device() noexcept { return device_; }
  SimulatedAllocator& torch() noexcept { return torch_; }
  const SimulatedAllocator& torch() const noexcept { return torch_; }
  SimulatedStreams& streams() noexcept { return streams_; }
  Bytes extent_bytes() const noexcept { return extent_bytes_; }  // as the native allocator counts them
  const std::string& offence() const noexcept { return offence_; }  // an extent given back while in use

 private:
  mutable std::mutex mutex_;  // guards all below
  SimulatedDevice device_;
  SimulatedAllocator torch_;
  SimulatedStreams streams_;
  std::unordered_map<void*, SimulatedBlock*> extents_;
  Bytes extent_bytes_ = 0;
  std::string offence_;
  Faults faults_;
};

}  // namespace stalloc
