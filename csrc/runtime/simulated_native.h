// A model of torch's caching allocator with segments from cudaMalloc, behaviour of 2.8 to 2.15.
#pragma once

#include <map>
#include <vector>

#include "core/types.h"
#include "runtime/simulated_cache.h"
#include "runtime/simulated_device.h"

namespace stalloc {

class SimulatedNative {
 public:
  SimulatedNative(SimulatedDevice& device, const CachingOptions& options) : device_(device), cache_(options) {}

  // nullptr: out of memory, after the cache was flushed.
  SimulatedBlock* allocate(Bytes requested, StreamHandle stream);
  FreeTicket request_free(SimulatedBlock* block) { return cache_.request_free(block); }
  void complete_free(FreeTicket ticket) { cache_.complete_free(ticket); }
  void empty_cache();

  const CachingStats& stats() const noexcept { return cache_.stats(); }

  struct SegmentView {
    std::uint64_t address;
    Bytes size;
    StreamHandle stream;
    bool small;
    Bytes live;  // bytes that are not cached
  };
  std::vector<SegmentView> segments() const;

 private:
  SimulatedBlock* new_segment(Bytes size, StreamHandle stream);
  bool release_oversized(Bytes size, StreamHandle stream);
  void collect_garbage();
  void release(SimulatedBlock* block);

  SimulatedDevice& device_;
  SimulatedCache cache_;
  std::map<std::uint64_t, SegmentView> segments_;  // `live` is filled in on demand
};

}  // namespace stalloc
