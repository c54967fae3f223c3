// The upstream of the stress programs: host memory that runs out and refuses now and then, and streams that read blocks
// some time after the program told them to, even after it freed them.
#pragma once

#include <atomic>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "runtime/host_upstream.h"
#include "common/pattern.h"

namespace stalloc {

class HostStreams : public HostUpstream {
 public:
  // One of `fails_once_in` calls fails; 0: none.
  HostStreams(Bytes limit_bytes, std::uint64_t fails_once_in) : HostUpstream(limit_bytes), fails_once_in_(fails_once_in) {}

  void* allocate(Bytes size, StreamHandle stream) noexcept override {
    return fails() ? nullptr : HostUpstream::allocate(size, stream);
  }
  Fence record_fence(StreamHandle stream) noexcept override { return fails() ? 0 : HostUpstream::record_fence(stream); }
  // Host memory is written at once: what the waiting stream comes after must be over.
  bool stream_wait_fence(StreamHandle, Fence) noexcept override {
    if (fails()) return false;
    run_all_streams();
    return true;
  }

  void submit_read(StreamHandle stream, const Block& block) {
    const std::lock_guard<std::mutex> lock(mutex_);
    reads_[stream].push_back(block);
  }
  // The stream does what it was told to: whatever it reads must still be there.
  void run_stream(StreamHandle stream) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = reads_.find(stream);
    if (found != reads_.end()) {
      for (const Block& block : found->second) verify(block, "a block was changed while a recorded stream used it");
      reads_.erase(found);
    }
    finish_stream(stream);
  }
  void run_all_streams() {
    std::vector<StreamHandle> streams;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      for (const auto& [stream, reads] : reads_) streams.push_back(stream);
    }
    for (const StreamHandle stream : streams) run_stream(stream);
  }
  void stop_failing() { fails_once_in_ = 0; }

 private:
  bool fails() noexcept {
    const std::uint64_t every = fails_once_in_.load(std::memory_order_relaxed);
    return every != 0 && (calls_.fetch_add(1, std::memory_order_relaxed) * 0x9e3779b97f4a7c15u >> 32) % every == 0;
  }

  std::atomic<std::uint64_t> fails_once_in_;
  std::atomic<std::uint64_t> calls_{1};
  std::mutex mutex_;  // guards reads_; held while a stream runs, so that no fence is recorded meanwhile for a later read
  std::unordered_map<StreamHandle, std::vector<Block>> reads_;
};

}  // namespace stalloc
