// What the models of torch's caching allocator share: rounding, free blocks by stream and size, splits and
// merges, and the figures that torch counts.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <unordered_map>
#include <vector>

#include "core/types.h"

namespace stalloc {

// The options of PYTORCH_CUDA_ALLOC_CONF that move blocks.
struct CachingOptions {
  static constexpr Bytes kUnlimited = kNever;
  Bytes max_split_size = kUnlimited;        // larger blocks are neither split nor given to smaller requests
  double garbage_collection_threshold = 0;  // share of the device's limit; 0: off
  // Parts between two powers of two, for sizes from 1 MiB on by powers of two; 0 or 1: round to 512.
  std::array<std::uint32_t, 16> roundup_power2_divisions{};
};

struct CachingStats {
  Bytes allocated = 0;  // blocks handed out and not asked back, unsplit tails included
  Bytes allocated_peak = 0;
  Bytes active = 0;     // as above, and blocks that wait for a recorded stream
  Bytes active_peak = 0;
  Bytes reserved = 0;
  Bytes reserved_peak = 0;
  std::int64_t flushes = 0;  // failed requests that emptied the cache and tried again
  std::int64_t segments_taken = 0;
};

struct SimulatedBlock {
  enum class State : std::uint8_t { kCached, kAllocated, kAwaitingStreams, kUnmapped };

  std::uint64_t address = 0;
  Bytes size = 0;
  StreamHandle stream = 0;
  SimulatedBlock* prev = nullptr;  // neighbours in the same segment, by address
  SimulatedBlock* next = nullptr;
  std::uint64_t segment = 0;       // first address of the segment
  std::int64_t cached_since = 0;   // the pool's count of searches when the block came back
  State state = State::kCached;
  bool small = false;
  bool expandable = false;

  bool is_whole_segment() const noexcept { return prev == nullptr && next == nullptr; }
};

using FreeTicket = std::int64_t;

struct BlockBefore {  // best fit: the smallest first, then the lowest
  bool operator()(const SimulatedBlock* a, const SimulatedBlock* b) const noexcept {
    return a->size != b->size ? a->size < b->size : a->address < b->address;
  }
};

class SimulatedCache {
 public:
  using FreeBlocks = std::set<SimulatedBlock*, BlockBefore>;

  static constexpr Bytes kSmallRequest = Bytes{1} << 20;    // up to here from the small pool
  static constexpr Bytes kSmallSegment = Bytes{2} << 20;
  static constexpr Bytes kLargeSegment = Bytes{20} << 20;   // shared by requests below kOwnSegment
  static constexpr Bytes kOwnSegment = Bytes{10} << 20;
  static constexpr Bytes kSegmentRounding = Bytes{2} << 20;

  explicit SimulatedCache(const CachingOptions& options) : options_(options) {}
  SimulatedCache(const SimulatedCache&) = delete;
  SimulatedCache& operator=(const SimulatedCache&) = delete;

  Bytes rounded(Bytes requested) const noexcept;
  static bool is_small(Bytes rounded) noexcept { return rounded <= kSmallRequest; }
  static Bytes segment_size(Bytes rounded) noexcept;

  // A cached block for `size`, out of the free set; nullptr when none suits. Not split yet.
  SimulatedBlock* take_best_fit(Bytes size, StreamHandle stream);
  // Hands `block` out for `size`: cuts what is left over, where the rules allow it.
  void hand_out(SimulatedBlock* block, Bytes size);
  // The owner asked for the free; the block may still wait for streams. Returns a ticket for complete_free.
  FreeTicket request_free(SimulatedBlock* block);
  // The block joins its free neighbours and may be handed out again; nothing when a flush did that already.
  void complete_free(FreeTicket ticket);
  // Waits for all streams, as a flush does.
  void complete_all_frees();

  SimulatedBlock* new_block();
  void delete_block(SimulatedBlock* block) {
    block->size = 0;
    unused_.push_back(block);
  }
  const std::deque<SimulatedBlock>& blocks() const noexcept { return blocks_; }  // size 0: unused
  FreeBlocks& free_blocks(StreamHandle stream, bool small);
  // Cuts `block` after `size` bytes; the rest takes over stream and state and is in no set.
  SimulatedBlock* cut(SimulatedBlock* block, Bytes size);
  // Joins `block` with neighbours in the same state; cached ones leave the free set.
  void join_neighbours(SimulatedBlock* block);

  void add_reserved(Bytes size) noexcept;
  CachingStats& stats() noexcept { return stats_; }
  const CachingStats& stats() const noexcept { return stats_; }
  const CachingOptions& options() const noexcept { return options_; }

  struct Pool {
    FreeBlocks free;
    std::int64_t searches = 0;
  };
  struct StreamPools {
    StreamHandle stream = 0;
    Pool small, large;
  };
  // By stream handle, as torch orders its sets.
  std::vector<StreamPools*> pools() noexcept;
  Pool& pool(StreamHandle stream, bool small);

 private:
  bool may_cut(const SimulatedBlock* block, Bytes size) const noexcept;
  void absorb(SimulatedBlock* block, SimulatedBlock* neighbour);
  void return_to_pool(SimulatedBlock* block);

  CachingOptions options_;
  CachingStats stats_;
  std::deque<SimulatedBlock> blocks_;  // owns all; addresses stay valid
  std::vector<SimulatedBlock*> unused_;
  std::map<FreeTicket, SimulatedBlock*> awaiting_;
  FreeTicket next_ticket_ = 0;
  std::deque<StreamPools> pools_;
  std::unordered_map<StreamHandle, StreamPools*> pool_of_stream_;
};

}  // namespace stalloc
