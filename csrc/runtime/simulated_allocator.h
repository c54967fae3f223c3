// A model of torch's caching allocator whose expandable_segments setting may change while the run goes on: blocks of
// the one kind never serve a request made under the other, and a failed request empties both caches.
#pragma once

#include <vector>

#include "core/types.h"
#include "runtime/simulated_device.h"
#include "runtime/simulated_expandable.h"
#include "runtime/simulated_native.h"

namespace stalloc {

class SimulatedAllocator {
 public:
  SimulatedAllocator(SimulatedDevice& device, const CachingOptions& options)
      : native_(device, options), expandable_(device, options) {}

  void use_expandable_segments(bool value) noexcept { is_expandable_ = value; }

  // nullptr: out of memory, after both caches were flushed.
  SimulatedBlock* allocate(Bytes requested, StreamHandle stream);
  FreeTicket request_free(SimulatedBlock* block);
  void complete_free(FreeTicket ticket);
  void empty_cache();

  CachingStats stats() const noexcept;  // without the peaks, which are not sums
  // What an empty_cache would leave: segments, and pages of expandable ones, in which something lives.
  struct Pinned {
    Bytes total = 0;
    Bytes live = 0;
  };
  Pinned pinned() const;

 private:
  SimulatedBlock* allocate_once(Bytes requested, StreamHandle stream) {
    return is_expandable_ ? expandable_.allocate(requested, stream) : native_.allocate(requested, stream);
  }

  SimulatedNative native_;
  SimulatedExpandable expandable_;
  bool is_expandable_ = false;
};

}  // namespace stalloc
