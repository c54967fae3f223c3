// An address range tiled by used and free blocks: takes a named range if it is free, or the best fit, and
// gives back with coalescing. All storage is set aside at construction; no operation allocates or throws.
//
// Blocks are found by address through a bitmap of block starts with summary levels (find the last start at or
// before an address in a few word operations) and a hash from start to block; free blocks hang in lists by
// size class (a power of two cut into 32, so a class holds sizes within 1/32 of each other).
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

  struct Block {
    std::uint32_t start = 0;    // in granules of kAlignment bytes
    std::uint32_t length = 0;   // in granules
    BlockIndex previous = kNoBlock;  // by address
    BlockIndex next = kNoBlock;
    BlockIndex list_previous = kNoBlock;  // among the free blocks of its size class
    BlockIndex list_next = kNoBlock;
    bool used = false;
  };

  // Throws Error when size is not a positive multiple of kAlignment under 2 TiB.
  BlockMap(Bytes size, std::size_t max_blocks);

  // The block now used, or kNoBlock when a byte of [offset, offset + size) is used or outside the range, or
  // when max_blocks are in use. Offsets and sizes are multiples of kAlignment.
  BlockIndex take_at(Bytes offset, Bytes size) noexcept;
  // The same from the smallest free block found that holds `size` bytes, at its low end.
  BlockIndex take_best_fit(Bytes size) noexcept;
  void release(BlockIndex block) noexcept;

  // The used or free block that holds `offset`.
  BlockIndex find(Bytes offset) const noexcept;
  const Block& block(BlockIndex index) const noexcept { return blocks_[index]; }
  Bytes offset_of(BlockIndex index) const noexcept { return Bytes{blocks_[index].start} * kAlignment; }
  Bytes size_of(BlockIndex index) const noexcept { return Bytes{blocks_[index].length} * kAlignment; }
  BlockIndex first() const noexcept;
  BlockIndex next(BlockIndex index) const noexcept { return blocks_[index].next; }

  Bytes size() const noexcept { return Bytes{num_granules_} * kAlignment; }
  Bytes used_bytes() const noexcept { return used_granules_ * kAlignment; }
  std::size_t num_used() const noexcept { return num_used_; }
  std::size_t max_blocks() const noexcept { return blocks_.size(); }
  bool has_spare_blocks() const noexcept { return spare_.size() >= 2; }  // else every take fails
  Bytes largest_free_bytes() const noexcept;
  // For tests: throws std::logic_error naming the first broken invariant.
  void check_invariants() const;

 private:
  static constexpr std::uint32_t kSubClassBits = 5;
  static constexpr std::size_t kNumClasses = std::size_t{32} << kSubClassBits;

  static std::size_t class_of(std::uint32_t length) noexcept;
  BlockIndex search_class(std::size_t size_class, std::uint32_t length) const noexcept;
  void list_insert(BlockIndex index) noexcept;
  void list_remove(BlockIndex index) noexcept;

  BlockIndex new_block(std::uint32_t start, std::uint32_t length) noexcept;
  void drop_block(BlockIndex index) noexcept;
  BlockIndex carve(BlockIndex free_block, std::uint32_t start, std::uint32_t length) noexcept;
  void absorb_next(BlockIndex index) noexcept;

  void set_start(std::uint32_t granule) noexcept;
  void clear_start(std::uint32_t granule) noexcept;
  std::uint32_t last_start_at_or_before(std::uint32_t granule) const noexcept;

  std::size_t bucket_of(std::uint32_t start) const noexcept;
  void hash_insert(std::uint32_t start, BlockIndex index) noexcept;
  void hash_erase(std::uint32_t start) noexcept;
  BlockIndex hash_find(std::uint32_t start) const noexcept;

  std::uint32_t num_granules_;
  Bytes used_granules_ = 0;
  std::size_t num_used_ = 0;
  std::vector<Block> blocks_;
  std::vector<BlockIndex> spare_;
  std::vector<BlockIndex> buckets_;  // open addressing; a power of two of at least twice max_blocks
  std::uint32_t bucket_shift_ = 0;
  std::vector<std::vector<std::uint64_t>> start_levels_;  // [0] one bit a granule; [k] one bit a word of [k-1]
  std::array<BlockIndex, kNumClasses> class_heads_;
  std::array<std::uint64_t, kNumClasses / 64> nonempty_{};  // one bit a class
};

}  // namespace stalloc
