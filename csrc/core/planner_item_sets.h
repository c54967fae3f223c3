// Sets of items as rows of bits, for the exact search.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/planner_problem.h"

namespace stalloc {

using Word = std::uint64_t;
constexpr std::size_t kBitsPerWord = 64;

class ItemSets {
 public:
  ItemSets() = default;
  ItemSets(std::size_t num_sets, std::size_t num_items)
      : num_words_((num_items + kBitsPerWord - 1) / kBitsPerWord), words_(num_sets * num_words_, 0) {}

  std::size_t num_words() const noexcept { return num_words_; }  // of a set
  Word* set(std::size_t k) noexcept { return words_.data() + k * num_words_; }
  const Word* set(std::size_t k) const noexcept { return words_.data() + k * num_words_; }
  void insert(std::size_t k, ItemIndex i) noexcept { set(k)[word_of(i)] |= bit_of(i); }
  void erase(std::size_t k, ItemIndex i) noexcept { set(k)[word_of(i)] &= ~bit_of(i); }

  static std::size_t word_of(ItemIndex i) noexcept { return static_cast<std::size_t>(i) / kBitsPerWord; }
  static Word bit_of(ItemIndex i) noexcept { return Word{1} << (static_cast<std::size_t>(i) % kBitsPerWord); }
  // The first item of the w-th word of a set, which is not empty.
  static ItemIndex first(std::size_t w, Word word) noexcept {
    return static_cast<ItemIndex>(w * kBitsPerWord + static_cast<std::size_t>(__builtin_ctzll(word)));
  }

 private:
  std::size_t num_words_ = 0;
  std::vector<Word> words_;
};

// Which items have which lowest offset. Levels without items are forgotten.
class ItemLevels {
 public:
  ItemLevels() = default;
  // All items at 0.
  explicit ItemLevels(std::size_t num_items);

  void move(ItemIndex i, Units from, Units to);
  // Its items, or null where there are none.
  const Word* find(Units level) const noexcept;

 private:
  static constexpr std::int32_t kNone = -1;
  struct Level {
    Units at;
    ItemIndex count;
    std::int32_t next;  // of its bucket, or of those that are free
  };

  std::size_t bucket_of(Units at) const noexcept {
    return static_cast<std::size_t>((static_cast<std::uint64_t>(at) * 0x9E3779B97F4A7C15ULL) >> bucket_shift_);
  }
  std::int32_t slot_of(Units at) const noexcept;
  std::int32_t add_level(Units at);

  ItemSets items_;              // by slot
  std::vector<Level> levels_;   // by slot
  std::vector<std::int32_t> buckets_;
  int bucket_shift_ = 0;
  std::int32_t free_ = kNone;
};

}  // namespace stalloc
