// A sequence of requested sizes, and a cursor that finds a run's place in it.
#pragma once

#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "core/types.h"

namespace stalloc {

// The sizes that one step asks for on one stream, in order, with an index of the places where each run of
// kGramLength sizes ends.
class Sequence {
 public:
  static constexpr std::size_t kGramLength = 3;

  Sequence() = default;
  explicit Sequence(std::vector<Bytes> sizes);

  std::int64_t length() const noexcept { return static_cast<std::int64_t>(sizes_.size()); }
  Bytes size_at(std::int64_t position) const noexcept { return sizes_[static_cast<std::size_t>(position)]; }
  // The first position from `from` on at which the gram ends; -1 when there is none.
  std::int64_t find_gram(const std::array<Bytes, kGramLength>& gram, std::int64_t from) const noexcept;

 private:
  static std::uint64_t hash(const Bytes* gram) noexcept;

  std::vector<Bytes> sizes_;
  std::vector<std::pair<std::uint64_t, std::int64_t>> grams_;  // (hash, end position), sorted
};

// Follows a sequence request by request. Goes by position; after a disagreement it looks among the positions
// it skipped, then a little ahead, then for the last three sizes anywhere. A request that finds no position
// leaves the cursor where it is, so one extra or one missing request costs one fallback.
class SequenceMatcher {
 public:
  static constexpr std::int64_t kNoPosition = -1;

  // The sequence is owned by the caller and outlives its use here.
  void begin(const Sequence* sequence) noexcept;
  // The position that foretells a request of `size` bytes, or kNoPosition. Each position is given once.
  std::int64_t match(Bytes size) noexcept;
  std::int64_t cursor() const noexcept { return cursor_; }

 private:
  static constexpr std::int64_t kLookAhead = 32;
  static constexpr std::size_t kMaxSkipped = 64;

  std::int64_t match_skipped(Bytes size) noexcept;
  std::int64_t match_ahead(Bytes size) noexcept;
  std::int64_t match_gram() noexcept;
  void skip(std::int64_t position) noexcept;

  const Sequence* sequence_ = nullptr;
  std::int64_t cursor_ = 0;
  std::array<std::int64_t, kMaxSkipped> skipped_{};  // positions passed over and not given yet, oldest first
  std::size_t num_skipped_ = 0;
  std::array<Bytes, Sequence::kGramLength> recent_{};  // the last sizes asked for, newest last
};

}  // namespace stalloc
