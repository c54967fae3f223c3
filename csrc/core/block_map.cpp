#include "core/block_map.h"

#include <algorithm>
#include <stdexcept>

namespace stalloc {
namespace {

constexpr Bytes kMaxBytes = Bytes{1} << 41;  // keeps granules in 32 bits
constexpr int kListScan = 16;                // blocks of one class looked at for the best fit

std::uint32_t floor_log2(std::uint32_t value) noexcept {
  return 31u - static_cast<std::uint32_t>(__builtin_clz(value));
}

std::uint32_t highest_bit(std::uint64_t word) noexcept {
  return 63u - static_cast<std::uint32_t>(__builtin_clzll(word));
}

}  // namespace

BlockMap::BlockMap(Bytes size, std::size_t max_blocks) {
  if (size <= 0 || size % kAlignment != 0 || size >= kMaxBytes)
    throw Error("Arena refused: size_bytes=" + std::to_string(size) +
                ", must be a positive multiple of 512 under 2 TiB. Report this as a bug.");
  num_granules_ = static_cast<std::uint32_t>(size / kAlignment);
  max_blocks = std::max<std::size_t>(max_blocks, 8);
  blocks_.resize(max_blocks);
  spare_.reserve(max_blocks);
  for (std::size_t i = max_blocks; i-- > 0;) spare_.push_back(static_cast<BlockIndex>(i));
  std::uint32_t bits = 4;
  while ((std::size_t{1} << bits) < 2 * max_blocks) ++bits;
  buckets_.assign(std::size_t{1} << bits, kNoBlock);
  bucket_shift_ = 64 - bits;
  std::size_t words = (std::size_t{num_granules_} + 63) / 64;
  start_levels_.emplace_back(words, 0);
  while (words > 1) {
    words = (words + 63) / 64;
    start_levels_.emplace_back(words, 0);
  }
  class_heads_.fill(kNoBlock);
  list_insert(new_block(0, num_granules_));
}

BlockMap::BlockIndex BlockMap::take_at(Bytes offset, Bytes size) noexcept {
  if (offset < 0 || size <= 0 || offset > this->size() - size) return kNoBlock;
  const auto start = static_cast<std::uint32_t>(offset / kAlignment);
  const auto length = static_cast<std::uint32_t>(size / kAlignment);
  const BlockIndex index = hash_find(last_start_at_or_before(start));
  const Block& found = blocks_[index];
  if (found.used || found.start + found.length < start + length) return kNoBlock;
  return carve(index, start, length);
}

BlockMap::BlockIndex BlockMap::take_best_fit(Bytes size) noexcept {
  if (size <= 0 || size > this->size()) return kNoBlock;
  const auto length = static_cast<std::uint32_t>(size / kAlignment);
  const std::size_t size_class = class_of(length);
  BlockIndex best = search_class(size_class, length);
  if (best == kNoBlock) {
    std::size_t word = (size_class + 1) / 64;
    if (word >= nonempty_.size()) return kNoBlock;
    std::uint64_t bits = nonempty_[word] & (~std::uint64_t{0} << ((size_class + 1) % 64));
    while (bits == 0) {
      if (++word == nonempty_.size()) return kNoBlock;
      bits = nonempty_[word];
    }
    best = search_class(word * 64 + static_cast<std::size_t>(__builtin_ctzll(bits)), length);
  }
  return best == kNoBlock ? kNoBlock : carve(best, blocks_[best].start, length);
}

void BlockMap::release(BlockIndex index) noexcept {
  Block& block = blocks_[index];
  block.used = false;
  used_granules_ -= block.length;
  --num_used_;
  if (block.next != kNoBlock && !blocks_[block.next].used) {
    list_remove(block.next);
    absorb_next(index);
  }
  const BlockIndex previous = block.previous;
  if (previous != kNoBlock && !blocks_[previous].used) {
    list_remove(previous);
    absorb_next(previous);
    index = previous;
  }
  list_insert(index);
}

// Cuts [start, start + length) out of a free block and marks it used. Needs up to two spare blocks.
BlockMap::BlockIndex BlockMap::carve(BlockIndex index, std::uint32_t start, std::uint32_t length) noexcept {
  if (!has_spare_blocks()) return kNoBlock;
  list_remove(index);
  if (blocks_[index].start < start) {
    const std::uint32_t head = start - blocks_[index].start;
    const BlockIndex rest = new_block(start, blocks_[index].length - head);
    Block& front = blocks_[index];
    front.length = head;
    blocks_[rest].previous = index;
    blocks_[rest].next = front.next;
    if (front.next != kNoBlock) blocks_[front.next].previous = rest;
    front.next = rest;
    list_insert(index);
    index = rest;
  }
  if (blocks_[index].length > length) {
    const BlockIndex tail = new_block(start + length, blocks_[index].length - length);
    Block& front = blocks_[index];
    front.length = length;
    blocks_[tail].previous = index;
    blocks_[tail].next = front.next;
    if (front.next != kNoBlock) blocks_[front.next].previous = tail;
    front.next = tail;
    list_insert(tail);
  }
  blocks_[index].used = true;
  used_granules_ += length;
  ++num_used_;
  return index;
}

void BlockMap::absorb_next(BlockIndex index) noexcept {
  Block& block = blocks_[index];
  const BlockIndex gone = block.next;
  block.length += blocks_[gone].length;
  block.next = blocks_[gone].next;
  if (block.next != kNoBlock) blocks_[block.next].previous = index;
  drop_block(gone);
}

BlockMap::BlockIndex BlockMap::new_block(std::uint32_t start, std::uint32_t length) noexcept {
  const BlockIndex index = spare_.back();
  spare_.pop_back();
  blocks_[index] = Block{};
  blocks_[index].start = start;
  blocks_[index].length = length;
  set_start(start);
  hash_insert(start, index);
  return index;
}

void BlockMap::drop_block(BlockIndex index) noexcept {
  clear_start(blocks_[index].start);
  hash_erase(blocks_[index].start);
  spare_.push_back(index);
}

BlockMap::BlockIndex BlockMap::find(Bytes offset) const noexcept {
  if (offset < 0 || offset >= size()) return kNoBlock;
  return hash_find(last_start_at_or_before(static_cast<std::uint32_t>(offset / kAlignment)));
}

BlockMap::BlockIndex BlockMap::first() const noexcept { return hash_find(0); }

Bytes BlockMap::largest_free_bytes() const noexcept {
  for (std::size_t word = nonempty_.size(); word-- > 0;) {
    if (nonempty_[word] == 0) continue;
    std::uint32_t largest = 0;
    for (BlockIndex at = class_heads_[word * 64 + highest_bit(nonempty_[word])]; at != kNoBlock;
         at = blocks_[at].list_next)
      largest = std::max(largest, blocks_[at].length);
    return Bytes{largest} * kAlignment;
  }
  return 0;
}

// --- free lists ---

std::size_t BlockMap::class_of(std::uint32_t length) noexcept {
  const std::uint32_t power = floor_log2(length);
  if (power < kSubClassBits) return length;
  const std::uint32_t sub = (length >> (power - kSubClassBits)) - (1u << kSubClassBits);
  return (std::size_t{power} - kSubClassBits + 1) * (std::size_t{1} << kSubClassBits) + sub;
}

BlockMap::BlockIndex BlockMap::search_class(std::size_t size_class, std::uint32_t length) const noexcept {
  BlockIndex best = kNoBlock;
  int looked_at = 0;
  for (BlockIndex at = class_heads_[size_class]; at != kNoBlock && looked_at < kListScan; at = blocks_[at].list_next) {
    ++looked_at;
    if (blocks_[at].length < length) continue;
    if (best == kNoBlock || blocks_[at].length < blocks_[best].length) best = at;
  }
  return best;
}

void BlockMap::list_insert(BlockIndex index) noexcept {
  const std::size_t size_class = class_of(blocks_[index].length);
  const BlockIndex head = class_heads_[size_class];
  blocks_[index].list_previous = kNoBlock;
  blocks_[index].list_next = head;
  if (head != kNoBlock) blocks_[head].list_previous = index;
  class_heads_[size_class] = index;
  nonempty_[size_class / 64] |= std::uint64_t{1} << (size_class % 64);
}

void BlockMap::list_remove(BlockIndex index) noexcept {
  const Block& block = blocks_[index];
  if (block.list_next != kNoBlock) blocks_[block.list_next].list_previous = block.list_previous;
  if (block.list_previous != kNoBlock) {
    blocks_[block.list_previous].list_next = block.list_next;
    return;
  }
  const std::size_t size_class = class_of(block.length);
  class_heads_[size_class] = block.list_next;
  if (block.list_next == kNoBlock) nonempty_[size_class / 64] &= ~(std::uint64_t{1} << (size_class % 64));
}

// --- block starts ---

void BlockMap::set_start(std::uint32_t granule) noexcept {
  std::size_t at = granule;
  for (auto& level : start_levels_) {
    std::uint64_t& word = level[at / 64];
    const bool was_empty = word == 0;
    word |= std::uint64_t{1} << (at % 64);
    if (!was_empty) return;
    at /= 64;
  }
}

void BlockMap::clear_start(std::uint32_t granule) noexcept {
  std::size_t at = granule;
  for (auto& level : start_levels_) {
    std::uint64_t& word = level[at / 64];
    word &= ~(std::uint64_t{1} << (at % 64));
    if (word != 0) return;
    at /= 64;
  }
}

// A block starts at granule 0, so there always is one.
std::uint32_t BlockMap::last_start_at_or_before(std::uint32_t granule) const noexcept {
  std::size_t at = granule;
  std::size_t level = 0;
  std::uint64_t word = start_levels_[0][at / 64] & (~std::uint64_t{0} >> (63 - at % 64));
  while (word == 0) {
    at /= 64;
    ++level;
    word = start_levels_[level][at / 64] & ((std::uint64_t{1} << (at % 64)) - 1);
  }
  at = (at / 64) * 64 + highest_bit(word);
  while (level-- > 0) at = at * 64 + highest_bit(start_levels_[level][at]);
  return static_cast<std::uint32_t>(at);
}

// --- hash from start to block: linear probing, erased by shifting back ---

std::size_t BlockMap::bucket_of(std::uint32_t start) const noexcept {
  return static_cast<std::size_t>((std::uint64_t{start} * 0x9e3779b97f4a7c15ULL) >> bucket_shift_);
}

void BlockMap::hash_insert(std::uint32_t start, BlockIndex index) noexcept {
  const std::size_t mask = buckets_.size() - 1;
  std::size_t bucket = bucket_of(start);
  while (buckets_[bucket] != kNoBlock) bucket = (bucket + 1) & mask;
  buckets_[bucket] = index;
}

BlockMap::BlockIndex BlockMap::hash_find(std::uint32_t start) const noexcept {
  const std::size_t mask = buckets_.size() - 1;
  std::size_t bucket = bucket_of(start);
  while (buckets_[bucket] != kNoBlock && blocks_[buckets_[bucket]].start != start) bucket = (bucket + 1) & mask;
  return buckets_[bucket];
}

void BlockMap::hash_erase(std::uint32_t start) noexcept {
  const std::size_t mask = buckets_.size() - 1;
  std::size_t hole = bucket_of(start);
  while (blocks_[buckets_[hole]].start != start) hole = (hole + 1) & mask;
  for (std::size_t at = (hole + 1) & mask; buckets_[at] != kNoBlock; at = (at + 1) & mask) {
    const std::size_t home = bucket_of(blocks_[buckets_[at]].start);
    if (((at - home) & mask) < ((at - hole) & mask)) continue;  // it sits between its home and the hole
    buckets_[hole] = buckets_[at];
    hole = at;
  }
  buckets_[hole] = kNoBlock;
}

void BlockMap::check_invariants() const {
  const auto require = [](bool holds, const char* what) {
    if (!holds) throw std::logic_error(std::string("BlockMap invariant broken: ") + what);
  };
  std::uint64_t covered = 0;
  Bytes used = 0;
  std::size_t count = 0;
  std::size_t free_count = 0;
  BlockIndex before = kNoBlock;
  for (BlockIndex at = first(); at != kNoBlock; at = blocks_[at].next) {
    const Block& block = blocks_[at];
    require(block.start == covered, "blocks tile the range");
    require(block.length > 0, "no block is empty");
    require(block.previous == before, "links agree");
    require(hash_find(block.start) == at, "the hash knows every block");
    require(last_start_at_or_before(block.start + block.length - 1) == block.start, "the bitmap knows every start");
    require(before == kNoBlock || block.used || blocks_[before].used, "free neighbours are merged");
    covered += block.length;
    if (block.used) used += block.length;
    ++count;
    if (!block.used) ++free_count;
    before = at;
  }
  require(covered == num_granules_, "the range is covered");
  require(used == used_granules_, "used bytes are counted");
  require(count + spare_.size() == blocks_.size(), "no block is lost");
  for (std::size_t size_class = 0; size_class < kNumClasses; ++size_class)
    for (BlockIndex at = class_heads_[size_class]; at != kNoBlock; at = blocks_[at].list_next) {
      require(!blocks_[at].used && class_of(blocks_[at].length) == size_class, "lists hold free blocks of their class");
      --free_count;
    }
  require(free_count == 0, "every free block is listed");
}

}  // namespace stalloc
