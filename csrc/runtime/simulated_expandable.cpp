#include "runtime/simulated_expandable.h"

#include <algorithm>
#include <vector>

namespace stalloc {

using State = SimulatedBlock::State;

namespace {

constexpr Bytes kRangeBytes = Bytes{160} << 30;  // 9/8 of a large device; only its being finite matters

// Free bytes from `block` on, mapped or not, up to `enough`.
bool has_free_addresses(const SimulatedBlock* block, Bytes enough) noexcept {
  Bytes found = 0;
  for (; block != nullptr && found < enough; block = block->next) {
    if (block->state != State::kCached && block->state != State::kUnmapped) break;
    found += block->size;
  }
  return found >= enough;
}

}  // namespace

SimulatedBlock* SimulatedExpandable::allocate(Bytes requested, StreamHandle stream) {
  const Bytes size = cache_.rounded(requested);
  SimulatedBlock* block = cache_.take_best_fit(size, stream);
  if (block == nullptr) block = grow(size, stream);
  if (block == nullptr) {
    empty_cache();
    ++cache_.stats().flushes;
    block = grow(size, stream);
  }
  if (block != nullptr) cache_.hand_out(block, size);
  return block;
}

SimulatedBlock* SimulatedExpandable::grow(Bytes size, StreamHandle stream) {
  // torch compares what a segment of cudaMalloc would take with the memory fraction, though less is mapped.
  if (!device_.has_room(SimulatedCache::segment_size(size))) return nullptr;
  if (size > kRangeBytes - SimulatedCache::kLargeSegment) return nullptr;  // no range holds it
  SimulatedBlock* block = find_room(size, stream);
  if (block->state == State::kUnmapped && !map(block, std::min(block->size, size))) return nullptr;
  while (block->size < size) {
    SimulatedBlock* next = block->next;  // unmapped: two cached neighbours would be one
    if (!map(next, std::min(next->size, size - block->size))) return nullptr;
    block = next;  // it absorbed what was before it
  }
  cache_.free_blocks(stream, block->small).erase(block);
  return block;
}

SimulatedBlock* SimulatedExpandable::find_room(Bytes size, StreamHandle stream) {
  const bool small = SimulatedCache::is_small(size);
  for (SimulatedBlock* block : unmapped(stream, small)) {
    SimulatedBlock* before = block->prev;
    SimulatedBlock* start = before != nullptr && before->state == State::kCached ? before : block;
    if (has_free_addresses(start, size)) return start;
  }
  return new_range(stream, small);
}

SimulatedBlock* SimulatedExpandable::new_range(StreamHandle stream, bool small) {
  SimulatedBlock* block = cache_.new_block();
  block->address = block->segment = device_.new_range(kRangeBytes);
  block->size = kRangeBytes / page_size(small) * page_size(small);
  block->stream = stream;
  block->small = small;
  block->expandable = true;
  block->state = State::kUnmapped;
  unmapped(stream, small).insert(block);
  return block;
}

bool SimulatedExpandable::map(SimulatedBlock* block, Bytes size) {
  const Bytes bytes = round_up(size, page_size(block->small));
  if (!device_.has_room(bytes)) return false;
  UnmappedBlocks& home = unmapped(block->stream, block->small);
  home.erase(block);
  if (bytes < block->size) home.insert(cache_.cut(block, bytes));
  block->state = State::kCached;
  cache_.join_neighbours(block);
  SimulatedCache::Pool& pool = cache_.pool(block->stream, block->small);
  block->cached_since = pool.searches;
  pool.free.insert(block);
  device_.take(bytes);
  cache_.add_reserved(bytes);
  ++cache_.stats().segments_taken;
  return true;
}

void SimulatedExpandable::empty_cache() {
  cache_.complete_all_frees();
  for (SimulatedCache::StreamPools* pools : cache_.pools()) {
    for (const SimulatedCache::FreeBlocks* blocks : {&pools->large.free, &pools->small.free}) {
      for (SimulatedBlock* block : std::vector<SimulatedBlock*>(blocks->begin(), blocks->end())) {
        unmap_whole_pages(block);
      }
    }
  }
}

void SimulatedExpandable::unmap_whole_pages(SimulatedBlock* block) {
  const Bytes page = page_size(block->small);
  const Bytes begin = static_cast<Bytes>(block->address - block->segment);
  const Bytes first = round_up(begin, page);
  const Bytes last = (begin + block->size) / page * page;
  if (first >= last) return;
  SimulatedCache::FreeBlocks& free = cache_.free_blocks(block->stream, block->small);
  free.erase(block);
  SimulatedBlock* middle = block;
  if (first > begin) {  // what shares its page with a live block stays
    middle = cache_.cut(block, first - begin);
    free.insert(block);
  }
  if (middle->size > last - first) free.insert(cache_.cut(middle, last - first));
  const Bytes bytes = middle->size;
  middle->state = State::kUnmapped;
  UnmappedBlocks& home = unmapped(middle->stream, middle->small);
  for (SimulatedBlock* neighbour : {middle->prev, middle->next}) {
    if (neighbour != nullptr && neighbour->state == State::kUnmapped) home.erase(neighbour);
  }
  cache_.join_neighbours(middle);
  home.insert(middle);
  device_.give_back(bytes);
  cache_.add_reserved(-bytes);
}

SimulatedExpandable::PageUse SimulatedExpandable::page_use() const {
  PageUse use;
  std::set<std::uint64_t> pages;  // by first address
  for (const SimulatedBlock& block : cache_.blocks()) {
    if (block.size == 0 || block.state == State::kCached || block.state == State::kUnmapped) continue;
    use.live += block.size;
    const auto page = static_cast<std::uint64_t>(page_size(block.small));
    const std::uint64_t end = block.address + static_cast<std::uint64_t>(block.size);
    std::uint64_t at = block.segment + (block.address - block.segment) / page * page;
    for (; at < end; at += page) {
      if (pages.insert(at).second) use.total += static_cast<Bytes>(page);
    }
  }
  return use;
}

}  // namespace stalloc
