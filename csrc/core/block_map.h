// An address range tiled by used and free blocks: takes a named range if it is free, or the best fit, and
// gives back with coalescing. All storage is set aside at construction; no operation allocates or throws.
//
// Used blocks are found by address through a bitmap of their starts with summary levels (find the last start at or
// before an address in a few word operations) and a hash from start to block; a free block through the used one before it.
// Free blocks hang in lists by size class (a power of two cut into 32, so a class holds sizes within 1/32 of each other);
// a change puts a block among the unsorted ones, and who looks for room by size sorts these first: what a step of planned
// requests gives and takes is never sorted.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "core/types.h"

namespace stalloc {

class BlockMap {
 public:
  using BlockIndex = std::uint32_t;
  static constexpr BlockIndex kNoBlock = 0xffffffffu;
  static constexpr std::uint16_t kUnsorted = 1024;  // the class of free blocks that were not sorted yet

  struct Block {
    std::uint32_t start = 0;    // in granules of kAlignment bytes
    std::uint32_t length = 0;   // in granules
    BlockIndex previous = kNoBlock;  // by address
    BlockIndex next = kNoBlock;
    BlockIndex list_previous = kNoBlock;  // among the free blocks of its size class
    BlockIndex list_next = kNoBlock;
    std::uint16_t size_class = kUnsorted;  // of the list it hangs in, while it is free
    bool used = false;
  };

  // Throws Error when size is not a positive multiple of kAlignment under 2 TiB.
  BlockMap(Bytes size, std::size_t max_blocks);

  // The block now used, or kNoBlock when a byte of [offset, offset + size) is used or outside the range, or
  // when max_blocks are in use. Offsets and sizes are multiples of kAlignment.
  BlockIndex take_at(Bytes offset, Bytes size) noexcept;
  // The same from the smallest free block found that holds `size` bytes, at its low end.
  BlockIndex take_best_fit(Bytes size) noexcept;
  // As take_at, from a free block that holds the range.
  BlockIndex take_from(BlockIndex free_block, Bytes offset, Bytes size) noexcept;
  void release(BlockIndex block) noexcept;

  // The used or free block that holds `offset`.
  BlockIndex find(Bytes offset) const noexcept;
  // The used block that begins at `offset`; kNoBlock when none does.
  BlockIndex find_used(Bytes offset) const noexcept {
    if (offset < 0 || offset >= size() || offset % kAlignment != 0) return kNoBlock;
    return hash_find(static_cast<std::uint32_t>(offset / kAlignment));
  }
  // Calls visit(index) for the free blocks that hold `size` bytes, by size class, smallest first, until it returns false.
  template <typename Visit>
  void visit_free(Bytes size, Visit visit) noexcept {
    sort_free();
    const auto length = static_cast<std::uint32_t>(size / kAlignment);
    for (std::size_t at = next_class(class_of(length)); at != kNumClasses; at = next_class(at + 1))
      for (BlockIndex index = class_heads_[at]; index != kNoBlock; index = blocks_[index].list_next)
        if (blocks_[index].length >= length && !visit(index)) return;
  }
  const Block& block(BlockIndex index) const noexcept { return blocks_[index]; }
  Bytes offset_of(BlockIndex index) const noexcept { return Bytes{blocks_[index].start} * kAlignment; }
  Bytes size_of(BlockIndex index) const noexcept { return Bytes{blocks_[index].length} * kAlignment; }
  BlockIndex first() const noexcept { return 0; }
  BlockIndex next(BlockIndex index) const noexcept { return blocks_[index].next; }

  Bytes size() const noexcept { return Bytes{num_granules_} * kAlignment; }
  Bytes used_bytes() const noexcept { return used_granules_ * kAlignment; }
  std::size_t num_used() const noexcept { return num_used_; }
  std::size_t max_blocks() const noexcept { return blocks_.size(); }
  bool has_spare_blocks() const noexcept { return num_spare_ >= 2; }  // else every take fails
  Bytes largest_free_bytes() noexcept;
  // For tests: throws std::logic_error naming the first broken invariant.
  void check_invariants() const;

 private:
  static constexpr std::uint32_t kSubClassBits = 5;
  static constexpr std::size_t kNumClasses = std::size_t{32} << kSubClassBits;
  static_assert(kNumClasses == kUnsorted);

  static std::size_t class_of(std::uint32_t length) noexcept {
    const std::uint32_t power = 31u - static_cast<std::uint32_t>(__builtin_clz(length));
    if (power < kSubClassBits) return length;
    return (std::size_t{power} - kSubClassBits) * (std::size_t{1} << kSubClassBits) + (length >> (power - kSubClassBits));
  }
  // The first class from `size_class` on that has a block; kNumClasses when there is none.
  std::size_t next_class(std::size_t size_class) const noexcept {
    std::size_t word = size_class / 64;
    if (word >= kNumClasses / 64) return kNumClasses;
    std::uint64_t bits = nonempty_[word] & (~std::uint64_t{0} << (size_class % 64));
    while (bits == 0) {
      if (++word == kNumClasses / 64) return kNumClasses;
      bits = nonempty_[word];
    }
    return word * 64 + static_cast<std::size_t>(__builtin_ctzll(bits));
  }
  BlockIndex search_class(std::size_t size_class, std::uint32_t length) const noexcept;
  void sort_free() noexcept;
  void list_insert(BlockIndex index, std::size_t size_class = kUnsorted) noexcept;
  void list_remove(BlockIndex index) noexcept;
  void list_replace(BlockIndex old, BlockIndex index) noexcept;
  void resize_free(BlockIndex index, std::uint32_t length) noexcept;

  BlockIndex insert_after(BlockIndex before, std::uint32_t start, std::uint32_t length) noexcept;
  void drop_after(BlockIndex before) noexcept;
  void add_spare(BlockIndex index) noexcept;
  void set_used(BlockIndex index, bool used) noexcept;
  BlockIndex carve(BlockIndex free_block, std::uint32_t start, std::uint32_t length) noexcept;

  void set_start(std::uint32_t granule) noexcept;
  void clear_start(std::uint32_t granule) noexcept;
  BlockIndex block_at(std::uint32_t granule) const noexcept;

  std::size_t bucket_of(std::uint32_t start) const noexcept {
    return static_cast<std::size_t>((std::uint64_t{start} * 0x9e3779b97f4a7c15ULL) >> bucket_shift_);
  }
  void hash_insert(std::uint32_t start, BlockIndex index) noexcept;
  void hash_erase(std::uint32_t start) noexcept;
  BlockIndex hash_find(std::uint32_t start) const noexcept;

  std::uint32_t num_granules_;
  Bytes used_granules_ = 0;
  std::size_t num_used_ = 0;
  std::vector<Block> blocks_;
  BlockIndex spare_head_ = kNoBlock;  // blocks that are no block now, linked by `next`
  std::size_t num_spare_ = 0;
  struct Bucket {
    std::uint32_t start = 0;
    BlockIndex index = kNoBlock;  // kNoBlock: the bucket is empty
  };
  std::vector<Bucket> buckets_;  // open addressing; a power of two of at least twice max_blocks
  std::uint32_t bucket_shift_ = 0;
  std::size_t bucket_mask_ = 0;
  std::vector<std::uint64_t> starts_;  // of used blocks: level 0 has one bit a granule; level k one bit a word of level k-1
  std::array<std::size_t, 8> level_begin_{};  // into starts_
  std::size_t num_levels_ = 0;
  std::array<BlockIndex, kNumClasses + 1> class_heads_;         // the last of the unsorted
  std::array<std::uint64_t, kNumClasses / 64 + 1> nonempty_{};  // one bit a class
};

}  // namespace stalloc
