#include "core/block_map.h"

#include <algorithm>
#include <stdexcept>

namespace stalloc {
namespace {

constexpr int kListScan = 16;                // blocks of one class looked at for the best fit

std::uint32_t highest_bit(std::uint64_t word) noexcept {
  return 63u - static_cast<std::uint32_t>(__builtin_clzll(word));
}

}  // namespace

BlockMap::BlockMap(Bytes size, std::size_t max_blocks) {
  if (size <= 0 || size % kAlignment != 0 || size >= kMaxExtentBytes)
    throw Error("Arena refused: size_bytes=" + std::to_string(size) +
                ", must be a positive multiple of 512 under 2 TiB. Report this as a bug.");
  num_granules_ = static_cast<std::uint32_t>(size / kAlignment);
  max_blocks = std::max<std::size_t>(max_blocks, 8);
  blocks_.resize(max_blocks);
  for (std::size_t i = max_blocks; i-- > 0;) add_spare(static_cast<BlockIndex>(i));
  std::uint32_t bits = 4;
  while ((std::size_t{1} << bits) < 2 * max_blocks) ++bits;
  buckets_.resize(std::size_t{1} << bits);
  bucket_shift_ = 64 - bits;
  bucket_mask_ = buckets_.size() - 1;
  std::size_t words = num_granules_;
  do {
    words = (words + 63) / 64;
    level_begin_[num_levels_++] = starts_.size();
    starts_.resize(starts_.size() + words, 0);
  } while (words > 1);
  class_heads_.fill(kNoBlock);
  list_insert(insert_after(kNoBlock, 0, num_granules_));
}

BlockMap::BlockIndex BlockMap::take_at(Bytes offset, Bytes size) noexcept {
  if (offset < 0 || size <= 0 || offset > this->size() - size) return kNoBlock;
  const auto start = static_cast<std::uint32_t>(offset / kAlignment);
  const auto length = static_cast<std::uint32_t>(size / kAlignment);
  const BlockIndex index = block_at(start);
  const Block& found = blocks_[index];
  if (found.used || found.start + found.length < start + length) return kNoBlock;
  return carve(index, start, length);
}

BlockMap::BlockIndex BlockMap::take_best_fit(Bytes size) noexcept {
  if (size <= 0 || size > this->size()) return kNoBlock;
  const auto length = static_cast<std::uint32_t>(size / kAlignment);
  const std::size_t size_class = class_of(length);
  sort_free();
  BlockIndex best = search_class(size_class, length);
  if (best == kNoBlock) {
    const std::size_t next = next_class(size_class + 1);
    if (next == kNumClasses) return kNoBlock;
    best = search_class(next, length);
  }
  return best == kNoBlock ? kNoBlock : carve(best, blocks_[best].start, length);
}

BlockMap::BlockIndex BlockMap::take_from(BlockIndex free_block, Bytes offset, Bytes size) noexcept {
  return carve(free_block, static_cast<std::uint32_t>(offset / kAlignment), static_cast<std::uint32_t>(size / kAlignment));
}

void BlockMap::release(BlockIndex index) noexcept {
  Block* const blocks = blocks_.data();
  Block& block = blocks[index];
  std::uint32_t length = block.length;
  set_used(index, false);
  const BlockIndex previous = block.previous;
  const BlockIndex next = block.next;
  const bool joins_next = next != kNoBlock && !blocks[next].used;
  if (joins_next) length += blocks[next].length;
  if (previous != kNoBlock && !blocks[previous].used) {
    if (joins_next) {
      list_remove(next);
      drop_after(index);
    }
    drop_after(previous);
    resize_free(previous, blocks[previous].length + length);
  } else if (joins_next) {
    block.length = length;
    list_replace(next, index);
    drop_after(index);
  } else {
    list_insert(index);
  }
}

// Cuts [start, start + length) out of a free block and marks it used. Needs up to two spare blocks.
BlockMap::BlockIndex BlockMap::carve(BlockIndex index, std::uint32_t start, std::uint32_t length) noexcept {
  if (!has_spare_blocks()) return kNoBlock;
  Block* const blocks = blocks_.data();
  const std::uint32_t head = start - blocks[index].start;
  const std::uint32_t rest = blocks[index].length - head - length;
  BlockIndex taken = index;
  if (head > 0) {
    taken = insert_after(index, start, length);
    resize_free(index, head);
    if (rest > 0) list_insert(insert_after(taken, start + length, rest));
  } else if (rest > 0) {
    blocks[index].length = length;
    list_replace(index, insert_after(index, start + length, rest));
  } else {
    list_remove(index);
  }
  set_used(taken, true);
  return taken;
}

void BlockMap::set_used(BlockIndex index, bool used) noexcept {
  Block& block = blocks_[index];
  const std::uint32_t start = block.start;
  block.used = used;
  if (used) {
    used_granules_ += block.length;
    ++num_used_;
    set_start(start);
    hash_insert(start, index);
  } else {
    used_granules_ -= block.length;
    --num_used_;
    clear_start(start);
    hash_erase(start);
  }
}

// A new block, neither used nor in a list. `before`, if any, is not shortened.
BlockMap::BlockIndex BlockMap::insert_after(BlockIndex before, std::uint32_t start, std::uint32_t length) noexcept {
  Block* const blocks = blocks_.data();
  const BlockIndex index = spare_head_;
  Block& block = blocks[index];
  spare_head_ = block.next;
  --num_spare_;
  const BlockIndex next = before == kNoBlock ? kNoBlock : blocks[before].next;
  block.start = start;
  block.length = length;
  block.previous = before;
  block.next = next;
  block.used = false;
  if (before != kNoBlock) blocks[before].next = index;
  if (next != kNoBlock) blocks[next].previous = index;
  return index;
}

// Forgets the block behind `before`, which is in no list.
void BlockMap::drop_after(BlockIndex before) noexcept {
  Block* const blocks = blocks_.data();
  const BlockIndex index = blocks[before].next;
  const BlockIndex next = blocks[index].next;
  blocks[before].next = next;
  if (next != kNoBlock) blocks[next].previous = before;
  add_spare(index);
}

void BlockMap::add_spare(BlockIndex index) noexcept {
  blocks_[index].next = spare_head_;
  spare_head_ = index;
  ++num_spare_;
}

BlockMap::BlockIndex BlockMap::find(Bytes offset) const noexcept {
  if (offset < 0 || offset >= size()) return kNoBlock;
  return block_at(static_cast<std::uint32_t>(offset / kAlignment));
}

Bytes BlockMap::largest_free_bytes() noexcept {
  sort_free();
  for (std::size_t word = kNumClasses / 64; word-- > 0;) {
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

void BlockMap::sort_free() noexcept {
  for (BlockIndex at = class_heads_[kUnsorted]; at != kNoBlock;) {
    const BlockIndex next = blocks_[at].list_next;
    list_insert(at, class_of(blocks_[at].length));
    at = next;
  }
  class_heads_[kUnsorted] = kNoBlock;
}

void BlockMap::list_insert(BlockIndex index, std::size_t size_class) noexcept {
  Block* const blocks = blocks_.data();
  const BlockIndex head = class_heads_[size_class];
  blocks[index].size_class = static_cast<std::uint16_t>(size_class);
  blocks[index].list_previous = kNoBlock;
  blocks[index].list_next = head;
  if (head != kNoBlock) blocks[head].list_previous = index;
  else nonempty_[size_class / 64] |= std::uint64_t{1} << (size_class % 64);
  class_heads_[size_class] = index;
}

void BlockMap::list_remove(BlockIndex index) noexcept {
  Block* const blocks = blocks_.data();
  const std::size_t size_class = blocks[index].size_class;
  const BlockIndex previous = blocks[index].list_previous;
  const BlockIndex next = blocks[index].list_next;
  if (next != kNoBlock) blocks[next].list_previous = previous;
  if (previous != kNoBlock) {
    blocks[previous].list_next = next;
    return;
  }
  class_heads_[size_class] = next;
  if (next == kNoBlock) nonempty_[size_class / 64] &= ~(std::uint64_t{1} << (size_class % 64));
}

// `index`, in no list, comes in the place of `old`.
void BlockMap::list_replace(BlockIndex old, BlockIndex index) noexcept {
  Block* const blocks = blocks_.data();
  const std::uint16_t size_class = blocks[old].size_class;
  if (size_class != kUnsorted && class_of(blocks[index].length) != size_class) {
    list_remove(old);
    list_insert(index);
    return;
  }
  const BlockIndex previous = blocks[old].list_previous;
  const BlockIndex next = blocks[old].list_next;
  blocks[index].size_class = size_class;
  blocks[index].list_previous = previous;
  blocks[index].list_next = next;
  if (next != kNoBlock) blocks[next].list_previous = index;
  if (previous != kNoBlock) blocks[previous].list_next = index;
  else class_heads_[size_class] = index;
}

void BlockMap::resize_free(BlockIndex index, std::uint32_t length) noexcept {
  blocks_[index].length = length;
  const std::size_t size_class = blocks_[index].size_class;
  if (size_class == kUnsorted || size_class == class_of(length)) return;
  list_remove(index);
  list_insert(index);
}

// --- block starts ---

void BlockMap::set_start(std::uint32_t granule) noexcept {
  std::uint64_t* const words = starts_.data();
  std::size_t at = granule;
  for (std::size_t level = 0; level < num_levels_; ++level) {
    std::uint64_t& word = words[level_begin_[level] + at / 64];
    const std::uint64_t before = word;
    word = before | (std::uint64_t{1} << (at % 64));
    if (before != 0) return;
    at /= 64;
  }
}

void BlockMap::clear_start(std::uint32_t granule) noexcept {
  std::uint64_t* const words = starts_.data();
  std::size_t at = granule;
  for (std::size_t level = 0; level < num_levels_; ++level) {
    std::uint64_t& word = words[level_begin_[level] + at / 64];
    const std::uint64_t after = word & ~(std::uint64_t{1} << (at % 64));
    word = after;
    if (after != 0) return;
    at /= 64;
  }
}

// The used block that begins last at or before the granule holds it, or the free block behind that one does.
BlockMap::BlockIndex BlockMap::block_at(std::uint32_t granule) const noexcept {
  const std::uint64_t* const words = starts_.data();
  std::size_t at = granule;
  std::size_t level = 0;
  std::uint64_t word = words[at / 64] & (~std::uint64_t{0} >> (63 - at % 64));
  while (word == 0) {
    at /= 64;
    if (++level == num_levels_) return first();
    word = words[level_begin_[level] + at / 64] & ((std::uint64_t{1} << (at % 64)) - 1);
  }
  at = (at / 64) * 64 + highest_bit(word);
  while (level-- > 0) at = at * 64 + highest_bit(words[level_begin_[level] + at]);
  const BlockIndex index = hash_find(static_cast<std::uint32_t>(at));
  const Block& block = blocks_[index];
  return granule - block.start < block.length ? index : block.next;
}

// --- hash from start to block: linear probing, erased by shifting back ---

void BlockMap::hash_insert(std::uint32_t start, BlockIndex index) noexcept {
  Bucket* const buckets = buckets_.data();
  std::size_t bucket = bucket_of(start);
  while (buckets[bucket].index != kNoBlock) bucket = (bucket + 1) & bucket_mask_;
  buckets[bucket] = {start, index};
}

BlockMap::BlockIndex BlockMap::hash_find(std::uint32_t start) const noexcept {
  const Bucket* const buckets = buckets_.data();
  std::size_t bucket = bucket_of(start);
  while (buckets[bucket].index != kNoBlock && buckets[bucket].start != start) bucket = (bucket + 1) & bucket_mask_;
  return buckets[bucket].index;
}

void BlockMap::hash_erase(std::uint32_t start) noexcept {
  Bucket* const buckets = buckets_.data();
  const std::size_t mask = bucket_mask_;
  std::size_t hole = bucket_of(start);
  while (buckets[hole].start != start) hole = (hole + 1) & mask;
  for (std::size_t at = (hole + 1) & mask; buckets[at].index != kNoBlock; at = (at + 1) & mask) {
    const std::size_t home = bucket_of(buckets[at].start);
    if (((at - home) & mask) < ((at - hole) & mask)) continue;  // it sits between its home and the hole
    buckets[hole] = buckets[at];
    hole = at;
  }
  buckets[hole].index = kNoBlock;
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
    require(hash_find(block.start) == (block.used ? at : kNoBlock), "the hash knows the used blocks");
    require(block_at(block.start + block.length - 1) == at && block_at(block.start) == at, "the bitmap knows the used blocks");
    require(before == kNoBlock || block.used || blocks_[before].used, "free neighbours are merged");
    covered += block.length;
    if (block.used) used += block.length;
    ++count;
    if (!block.used) ++free_count;
    before = at;
  }
  require(covered == num_granules_, "the range is covered");
  require(used == used_granules_, "used bytes are counted");
  require(count + num_spare_ == blocks_.size(), "no block is lost");
  for (std::size_t size_class = 0; size_class <= kUnsorted; ++size_class)
    for (BlockIndex at = class_heads_[size_class]; at != kNoBlock; at = blocks_[at].list_next) {
      require(!blocks_[at].used && blocks_[at].size_class == size_class &&
                  (size_class == kUnsorted || class_of(blocks_[at].length) == size_class),
              "lists hold free blocks of their class");
      --free_count;
    }
  require(free_count == 0, "every free block is listed");
}

}  // namespace stalloc
