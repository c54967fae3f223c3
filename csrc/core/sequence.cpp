#include "core/sequence.h"

#include <algorithm>

namespace stalloc {

Sequence::Sequence(std::vector<Bytes> sizes) : sizes_(std::move(sizes)) {
  for (std::size_t end = kGramLength - 1; end < sizes_.size(); ++end) {
    const Bytes* gram = &sizes_[end + 1 - kGramLength];
    if (std::all_of(gram, gram + kGramLength, [](Bytes size) { return size > 0; }))
      grams_.emplace_back(hash(gram), static_cast<std::int64_t>(end));
  }
  std::sort(grams_.begin(), grams_.end());
}

std::uint64_t Sequence::hash(const Bytes* gram) noexcept {
  std::uint64_t h = 0x9e3779b97f4a7c15ULL;
  for (std::size_t i = 0; i < kGramLength; ++i) {
    h ^= static_cast<std::uint64_t>(gram[i]);
    h *= 0xff51afd7ed558ccdULL;
    h ^= h >> 32;
  }
  return h;
}

std::int64_t Sequence::find_gram(const std::array<Bytes, kGramLength>& gram, std::int64_t from) const noexcept {
  const std::uint64_t h = hash(gram.data());
  const auto found = std::lower_bound(grams_.begin(), grams_.end(), std::make_pair(h, from));
  return found != grams_.end() && found->first == h ? found->second : -1;
}

void SequenceMatcher::begin(const Sequence* sequence, const Bytes* expected) noexcept {
  sequence_ = sequence;
  expected_ = expected;
  length_ = sequence == nullptr ? 0 : sequence->length();
  cursor_ = 0;
  num_skipped_ = 0;
  num_misses_ = 0;
  recent_.fill(0);
}

std::int64_t SequenceMatcher::match_elsewhere(Bytes size) noexcept {
  std::int64_t position = match_skipped(size);
  if (position == kNoPosition) position = match_ahead(size);
  num_misses_ = position == kNoPosition ? num_misses_ + 1 : 0;
  if (num_misses_ < Sequence::kGramLength) return position;
  position = match_gram();
  if (position != kNoPosition) num_misses_ = 0;
  return position;
}

std::int64_t SequenceMatcher::match_skipped(Bytes size) noexcept {
  for (std::size_t i = 0; i < num_skipped_; ++i) {
    if (expected_[skipped_[i]] != size) continue;
    const std::int64_t position = skipped_[i];
    std::copy(skipped_.begin() + static_cast<std::ptrdiff_t>(i) + 1,
              skipped_.begin() + static_cast<std::ptrdiff_t>(num_skipped_),
              skipped_.begin() + static_cast<std::ptrdiff_t>(i));
    --num_skipped_;
    return position;
  }
  return kNoPosition;
}

std::int64_t SequenceMatcher::match_ahead(Bytes size) noexcept {
  const std::int64_t end = std::min(length_, cursor_ + kLookAhead);
  for (std::int64_t at = cursor_ + 1; at < end; ++at)
    if (expected_[at] == size) return advance_to(at);
  return kNoPosition;
}

// Only forwards: positions before the cursor were given, and a second pass over their slots would find them
// busy at best. What lies between is given up.
std::int64_t SequenceMatcher::match_gram() noexcept {
  const std::int64_t position = sequence_->find_gram(recent_, cursor_);
  if (position < 0) return kNoPosition;
  cursor_ = position + 1;
  num_skipped_ = 0;
  return position;
}

// Remembers the positions passed over; the oldest are given up when there are too many.
std::int64_t SequenceMatcher::advance_to(std::int64_t position) noexcept {
  for (; cursor_ < position; ++cursor_) {
    if (num_skipped_ == kMaxSkipped) {
      std::copy(skipped_.begin() + 1, skipped_.end(), skipped_.begin());
      --num_skipped_;
    }
    skipped_[num_skipped_++] = cursor_;
  }
  return cursor_++;
}

}  // namespace stalloc
