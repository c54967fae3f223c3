// A sequence of requested sizes, and a cursor that finds a run's place in it.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <utility>
#include <vector>

#include "core/types.h"

namespace stalloc {

inline constexpr Bytes kAnySize = -1;      // the request that tells a variable's value
inline constexpr Bytes kUnknownSize = -2;  // depends on a variable without a value, or on nothing we know

// The sizes that one step asks for on one stream, in order, with an index of the places where each run of
// kGramLength known sizes ends.
class Sequence {
 public:
  static constexpr std::size_t kGramLength = 3;

  Sequence() = default;
  explicit Sequence(std::vector<Bytes> sizes);

  std::int64_t length() const noexcept { return static_cast<std::int64_t>(sizes_.size()); }
  const std::vector<Bytes>& sizes() const noexcept { return sizes_; }
  // The first position from `from` on at which the gram ends; -1 when there is none.
  std::int64_t find_gram(const std::array<Bytes, kGramLength>& gram, std::int64_t from) const noexcept;

 private:
  static std::uint64_t hash(const Bytes* gram) noexcept;

  std::vector<Bytes> sizes_;
  std::vector<std::pair<std::uint64_t, std::int64_t>> grams_;  // (hash, end position), sorted
};

// Follows a sequence request by request. Goes by position; after a disagreement it looks among the positions
// it skipped, then a little ahead, then, when three in a row found nothing, for these three anywhere: steps with
// accumulation repeat themselves, and a jump on less would leap over a whole micro-step. A request that finds no position
// leaves the cursor where it is, so one extra or one missing request costs one fallback.
class SequenceMatcher {
 public:
  static constexpr std::int64_t kNoPosition = -1;

  // `expected` holds the sequence's sizes with what this step's variables made of them; it may change between
  // calls. Both are owned by the caller and outlive their use here.
  void begin(const Sequence* sequence, const Bytes* expected) noexcept;
  // The position that foretells a request of `size` bytes, or kNoPosition. Each position is given once. A
  // position of any size is only given when `may_define` says that it may be this request.
  template <typename MayDefine>
  std::int64_t match(Bytes size, MayDefine may_define) noexcept {
    if (sequence_ == nullptr) return kNoPosition;
    recent_ = {recent_[1], recent_[2], size};
    if (cursor_ < length_ && expected_[cursor_] == size) {
      num_misses_ = 0;
      return cursor_++;
    }
    for (std::int64_t at = cursor_; at < std::min(cursor_ + kDefinersAhead, length_); ++at)
      if (expected_[at] == kAnySize && may_define(at)) return advance_to(at);
    return match_elsewhere(size);
  }
  // Whether a request of `size` bytes would have the next position in order.
  bool foretells(Bytes size) const noexcept { return cursor_ < length_ && (expected_[cursor_] == size || expected_[cursor_] == kAnySize); }
  std::int64_t cursor() const noexcept { return cursor_; }
  bool is_at_end() const noexcept { return cursor_ >= length_; }
  // The next request is at `position`.
  void go_to(std::int64_t position) noexcept {
    cursor_ = position;
    num_skipped_ = 0;
    num_misses_ = 0;
  }

 private:
  static constexpr std::int64_t kLookAhead = 32;
  static constexpr std::int64_t kDefinersAhead = 2;
  static constexpr std::size_t kMaxSkipped = 64;

  std::int64_t match_elsewhere(Bytes size) noexcept;
  std::int64_t match_skipped(Bytes size) noexcept;
  std::int64_t match_ahead(Bytes size) noexcept;
  std::int64_t match_gram() noexcept;
  std::int64_t advance_to(std::int64_t position) noexcept;

  const Sequence* sequence_ = nullptr;
  const Bytes* expected_ = nullptr;
  std::int64_t length_ = 0;
  std::int64_t cursor_ = 0;
  std::size_t num_skipped_ = 0;
  std::size_t num_misses_ = 0;  // requests in a row that found no position
  std::array<Bytes, Sequence::kGramLength> recent_{};  // the last sizes asked for, newest last
  std::array<std::int64_t, kMaxSkipped> skipped_{};    // positions passed over and not given yet, oldest first
};

}  // namespace stalloc
