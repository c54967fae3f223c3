// A model of torch's caching allocator with expandable_segments:True: for each stream and pool one long range
// of addresses whose pages are mapped as it grows.
#pragma once

#include <map>
#include <set>
#include <utility>

#include "core/types.h"
#include "runtime/simulated_cache.h"
#include "runtime/simulated_device.h"

namespace stalloc {

class SimulatedExpandable {
 public:
  SimulatedExpandable(SimulatedDevice& device, const CachingOptions& options) : device_(device), cache_(options) {}

  // nullptr: out of memory, after all free pages were unmapped.
  SimulatedBlock* allocate(Bytes requested, StreamHandle stream);
  FreeTicket request_free(SimulatedBlock* block) { return cache_.request_free(block); }
  void complete_free(FreeTicket ticket) { cache_.complete_free(ticket); }
  void empty_cache();

  const CachingStats& stats() const noexcept { return cache_.stats(); }

  // Of the pages in which something lives.
  struct PageUse {
    Bytes total = 0;
    Bytes live = 0;
  };
  PageUse page_use() const;

 private:
  struct AddressBefore {
    bool operator()(const SimulatedBlock* a, const SimulatedBlock* b) const noexcept { return a->address < b->address; }
  };
  using UnmappedBlocks = std::set<SimulatedBlock*, AddressBefore>;

  static Bytes page_size(bool small) noexcept {
    return small ? SimulatedCache::kSmallSegment : SimulatedCache::kLargeSegment;
  }
  UnmappedBlocks& unmapped(StreamHandle stream, bool small) { return unmapped_[{stream, small}]; }
  SimulatedBlock* grow(Bytes size, StreamHandle stream);
  SimulatedBlock* find_room(Bytes size, StreamHandle stream);
  SimulatedBlock* new_range(StreamHandle stream, bool small);
  bool map(SimulatedBlock* block, Bytes size);
  void unmap_whole_pages(SimulatedBlock* block);

  SimulatedDevice& device_;
  SimulatedCache cache_;
  std::map<std::pair<StreamHandle, bool>, UnmappedBlocks> unmapped_;
};

}  // namespace stalloc
