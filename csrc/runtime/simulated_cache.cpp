#include "runtime/simulated_cache.h"

#include <algorithm>

namespace stalloc {
namespace {

int floor_log2(std::uint64_t value) noexcept {
  int result = 0;
  while (value >>= 1) ++result;
  return result;
}

// Up to the next of `divisions` equal parts between two powers of two; a power of two stays.
Bytes round_to_division(Bytes size, std::uint32_t divisions) noexcept {
  const auto value = static_cast<std::uint64_t>(size);
  const std::uint64_t power = std::uint64_t{1} << floor_log2(value);
  if (power == value) return size;
  const std::uint64_t part = power >> floor_log2(divisions);
  if (part == 0) return static_cast<Bytes>(power << 1);
  return static_cast<Bytes>((value + part - 1) / part * part);
}

}  // namespace

Bytes SimulatedCache::rounded(Bytes requested) const noexcept {
  if (requested < kAlignment) return kAlignment;
  constexpr int kFirst = 20;  // 1 MiB
  const int index = std::clamp(floor_log2(static_cast<std::uint64_t>(requested)) - kFirst, 0, 15);
  const std::uint32_t divisions = options_.roundup_power2_divisions[static_cast<std::size_t>(index)];
  if (divisions > 1 && requested > kAlignment * static_cast<Bytes>(divisions)) {
    return round_to_division(requested, divisions);
  }
  return round_up(requested, kAlignment);
}

Bytes SimulatedCache::segment_size(Bytes rounded) noexcept {
  if (is_small(rounded)) return kSmallSegment;
  if (rounded < kOwnSegment) return kLargeSegment;
  return round_up(rounded, kSegmentRounding);
}

SimulatedCache::Pool& SimulatedCache::pool(StreamHandle stream, bool small) {
  StreamPools*& entry = pool_of_stream_[stream];
  if (entry == nullptr) {
    entry = &pools_.emplace_back();
    entry->stream = stream;
  }
  return small ? entry->small : entry->large;
}

SimulatedCache::FreeBlocks& SimulatedCache::free_blocks(StreamHandle stream, bool small) {
  return pool(stream, small).free;
}

std::vector<SimulatedCache::StreamPools*> SimulatedCache::pools() noexcept {
  std::vector<StreamPools*> result;
  for (StreamPools& pools : pools_) result.push_back(&pools);
  std::sort(result.begin(), result.end(),
            [](const StreamPools* a, const StreamPools* b) { return a->stream < b->stream; });
  return result;
}

SimulatedBlock* SimulatedCache::take_best_fit(Bytes size, StreamHandle stream) {
  Pool& from = pool(stream, is_small(size));
  ++from.searches;
  SimulatedBlock key;
  key.size = size;
  auto it = from.free.lower_bound(&key);
  if (it == from.free.end()) return nullptr;
  // A block that can grow counts with what it can grow to: a bigger one that cannot is kept whole for later.
  const auto reach = [](const SimulatedBlock* block) {
    const SimulatedBlock* next = block->next;
    const bool grows = next != nullptr && next->state == SimulatedBlock::State::kUnmapped;
    return block->size + (grows ? next->size : 0);
  };
  for (auto next = std::next(it); (*it)->expandable && next != from.free.end() && reach(*next) < reach(*it); ++next) {
    it = next;
  }
  SimulatedBlock* block = *it;
  const Bytes most = options_.max_split_size;
  if (size < most && block->size >= most) return nullptr;
  if (size >= most && block->size >= size + kLargeSegment) return nullptr;
  from.free.erase(it);
  return block;
}

bool SimulatedCache::may_cut(const SimulatedBlock* block, Bytes size) const noexcept {
  const Bytes rest = block->size - size;
  if (block->small || block->expandable) return rest >= kAlignment;
  return size < options_.max_split_size && rest > kSmallRequest;
}

void SimulatedCache::hand_out(SimulatedBlock* block, Bytes size) {
  if (may_cut(block, size)) {
    SimulatedBlock* rest = cut(block, size);
    rest->state = SimulatedBlock::State::kCached;
    Pool& home = pool(rest->stream, rest->small);
    rest->cached_since = home.searches;
    home.free.insert(rest);
  }
  block->state = SimulatedBlock::State::kAllocated;
  stats_.allocated += block->size;
  stats_.active += block->size;
  stats_.allocated_peak = std::max(stats_.allocated_peak, stats_.allocated);
  stats_.active_peak = std::max(stats_.active_peak, stats_.active);
}

FreeTicket SimulatedCache::request_free(SimulatedBlock* block) {
  stats_.allocated -= block->size;
  block->state = SimulatedBlock::State::kAwaitingStreams;
  awaiting_.emplace_hint(awaiting_.end(), next_ticket_, block);
  return next_ticket_++;
}

void SimulatedCache::complete_free(FreeTicket ticket) {
  const auto it = awaiting_.find(ticket);
  if (it == awaiting_.end()) return;
  SimulatedBlock* block = it->second;
  awaiting_.erase(it);
  return_to_pool(block);
}

void SimulatedCache::complete_all_frees() {
  for (const auto& [ticket, block] : awaiting_) return_to_pool(block);
  awaiting_.clear();
}

void SimulatedCache::return_to_pool(SimulatedBlock* block) {
  stats_.active -= block->size;
  block->state = SimulatedBlock::State::kCached;
  join_neighbours(block);
  Pool& home = pool(block->stream, block->small);
  block->cached_since = home.searches;
  home.free.insert(block);
}

SimulatedBlock* SimulatedCache::new_block() {
  if (unused_.empty()) return &blocks_.emplace_back();
  SimulatedBlock* block = unused_.back();
  unused_.pop_back();
  *block = SimulatedBlock{};
  return block;
}

SimulatedBlock* SimulatedCache::cut(SimulatedBlock* block, Bytes size) {
  SimulatedBlock* rest = new_block();
  *rest = *block;
  rest->address = block->address + static_cast<std::uint64_t>(size);
  rest->size = block->size - size;
  rest->prev = block;
  if (rest->next != nullptr) rest->next->prev = rest;
  block->next = rest;
  block->size = size;
  return rest;
}

void SimulatedCache::join_neighbours(SimulatedBlock* block) {
  if (block->prev != nullptr && block->prev->state == block->state) absorb(block, block->prev);
  if (block->next != nullptr && block->next->state == block->state) absorb(block, block->next);
}

void SimulatedCache::absorb(SimulatedBlock* block, SimulatedBlock* neighbour) {
  if (neighbour->state == SimulatedBlock::State::kCached) free_blocks(neighbour->stream, neighbour->small).erase(neighbour);
  if (neighbour == block->prev) {
    block->address = neighbour->address;
    block->prev = neighbour->prev;
    if (block->prev != nullptr) block->prev->next = block;
  } else {
    block->next = neighbour->next;
    if (block->next != nullptr) block->next->prev = block;
  }
  block->size += neighbour->size;
  delete_block(neighbour);
}

void SimulatedCache::add_reserved(Bytes size) noexcept {
  stats_.reserved += size;
  stats_.reserved_peak = std::max(stats_.reserved_peak, stats_.reserved);
}

}  // namespace stalloc
