#include "runtime/simulated_native.h"

#include <algorithm>
#include <iterator>

namespace stalloc {

using State = SimulatedBlock::State;

SimulatedBlock* SimulatedNative::allocate(Bytes requested, StreamHandle stream) {
  const Bytes size = cache_.rounded(requested);
  SimulatedBlock* block = cache_.take_best_fit(size, stream);
  if (block == nullptr) {
    if (cache_.options().garbage_collection_threshold > 0 && device_.limit() > 0) collect_garbage();
    block = new_segment(size, stream);
  }
  if (block == nullptr && release_oversized(size, stream)) block = new_segment(size, stream);
  if (block == nullptr) {
    empty_cache();
    ++cache_.stats().flushes;
    block = new_segment(size, stream);
  }
  if (block != nullptr) cache_.hand_out(block, size);
  return block;
}

SimulatedBlock* SimulatedNative::new_segment(Bytes size, StreamHandle stream) {
  const Bytes bytes = SimulatedCache::segment_size(size);
  if (!device_.has_room(bytes)) return nullptr;
  device_.take(bytes);
  cache_.add_reserved(bytes);
  ++cache_.stats().segments_taken;
  SimulatedBlock* block = cache_.new_block();
  block->address = block->segment = device_.new_range(bytes);
  block->size = bytes;
  block->stream = stream;
  block->small = SimulatedCache::is_small(size);
  segments_[block->segment] = {block->segment, bytes, stream, block->small, 0};
  return block;
}

void SimulatedNative::release(SimulatedBlock* block) {
  cache_.free_blocks(block->stream, block->small).erase(block);
  device_.give_back(block->size);
  cache_.add_reserved(-block->size);
  segments_.erase(block->segment);
  cache_.delete_block(block);
}

void SimulatedNative::empty_cache() {
  cache_.complete_all_frees();
  std::vector<SimulatedBlock*> whole;
  for (SimulatedCache::StreamPools* pools : cache_.pools()) {
    for (const SimulatedCache::FreeBlocks* blocks : {&pools->large.free, &pools->small.free}) {
      std::copy_if(blocks->begin(), blocks->end(), std::back_inserter(whole),
                   [](const SimulatedBlock* block) { return block->is_whole_segment(); });
    }
  }
  for (SimulatedBlock* block : whole) release(block);
}

// With a split limit set, blocks above it serve nobody smaller: they go back first, the smallest that is
// enough alone, else from the largest down.
bool SimulatedNative::release_oversized(Bytes size, StreamHandle stream) {
  const Bytes most = cache_.options().max_split_size;
  if (most == CachingOptions::kUnlimited) return false;
  const bool small = SimulatedCache::is_small(size);
  SimulatedCache::FreeBlocks& blocks = cache_.free_blocks(stream, small);
  SimulatedBlock key;
  key.size = std::max(size, most);
  const auto enough = blocks.lower_bound(&key);
  if (enough != blocks.end()) {
    release(*enough);
    return true;
  }
  Bytes released = 0;
  while (!blocks.empty() && released < key.size) {
    SimulatedBlock* largest = *blocks.rbegin();
    if (largest->size < most || !largest->is_whole_segment()) break;
    released += largest->size;
    release(largest);
  }
  return released >= key.size;
}

void SimulatedNative::collect_garbage() {
  const auto allowed =
      static_cast<Bytes>(cache_.options().garbage_collection_threshold * static_cast<double>(device_.limit()));
  Bytes excess = device_.taken() - allowed;
  bool progress = true;
  while (excess > 0 && progress) {
    // The average age of what could go; at least that old goes, from the smallest up.
    std::vector<std::pair<SimulatedBlock*, std::int64_t>> candidates;
    double total_age = 0;
    for (SimulatedCache::StreamPools* pools : cache_.pools()) {
      for (SimulatedBlock* block : pools->large.free) {
        if (!block->is_whole_segment()) continue;
        const std::int64_t age = pools->large.searches - block->cached_since;
        candidates.emplace_back(block, age);
        total_age += static_cast<double>(age);
      }
    }
    progress = false;
    for (const auto& [block, age] : candidates) {
      if (excess <= 0) break;
      if (static_cast<double>(age) * static_cast<double>(candidates.size()) < total_age) continue;
      excess -= block->size;
      progress = true;
      release(block);
    }
  }
}

std::vector<SimulatedNative::SegmentView> SimulatedNative::segments() const {
  std::map<std::uint64_t, SegmentView> views = segments_;
  for (const SimulatedBlock& block : cache_.blocks()) {
    if (block.size > 0 && block.state != State::kCached) views.at(block.segment).live += block.size;
  }
  std::vector<SegmentView> result;
  result.reserve(views.size());
  for (const auto& [address, view] : views) result.push_back(view);
  return result;
}

}  // namespace stalloc
