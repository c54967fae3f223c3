#include "runtime/simulated_allocator.h"

namespace stalloc {

// A ticket tells by its last bit which model gave it.
SimulatedBlock* SimulatedAllocator::allocate(Bytes requested, StreamHandle stream) {
  SimulatedBlock* block = allocate_once(requested, stream);
  if (block != nullptr) return block;
  empty_cache();
  return allocate_once(requested, stream);
}

FreeTicket SimulatedAllocator::request_free(SimulatedBlock* block) {
  return block->expandable ? expandable_.request_free(block) * 2 + 1 : native_.request_free(block) * 2;
}

void SimulatedAllocator::complete_free(FreeTicket ticket) {
  if (ticket % 2 != 0) {
    expandable_.complete_free(ticket / 2);
  } else {
    native_.complete_free(ticket / 2);
  }
}

void SimulatedAllocator::empty_cache() {
  native_.empty_cache();
  expandable_.empty_cache();
}

CachingStats SimulatedAllocator::stats() const noexcept {
  CachingStats sum = native_.stats();
  const CachingStats& other = expandable_.stats();
  sum.allocated += other.allocated;
  sum.active += other.active;
  sum.reserved += other.reserved;
  sum.flushes += other.flushes;
  sum.segments_taken += other.segments_taken;
  return sum;
}

SimulatedAllocator::Pinned SimulatedAllocator::pinned() const {
  Pinned pinned;
  for (const SimulatedNative::SegmentView& segment : native_.segments()) {
    if (segment.live == 0) continue;
    pinned.total += segment.size;
    pinned.live += segment.live;
  }
  const SimulatedExpandable::PageUse pages = expandable_.page_use();
  pinned.total += pages.total;
  pinned.live += pages.live;
  return pinned;
}

}  // namespace stalloc
