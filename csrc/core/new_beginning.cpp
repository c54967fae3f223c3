#include "core/new_beginning.h"

#include <algorithm>

namespace stalloc {

std::int64_t NewBeginning::find_proven(const Step& step) noexcept {
  if (num_noted_ < kProof || __builtin_popcount(strange_ & kLast) < kMinStrange) return kNoPosition;
  return read(step, kProof);
}

std::int64_t NewBeginning::find_likely(const Step& step) noexcept {
  const bool is_strange = (strange_ & 1u) != 0;
  for (std::uint32_t count = std::min<std::uint32_t>(kProof - 1, num_noted_); count >= 1; --count) {
    if (!is_strange && !were_strange(std::min(count + kBefore, num_noted_))) continue;
    const std::int64_t position = read(step, count);
    if (position != kNoPosition) return position;
  }
  return kNoPosition;
}

// Whether as many as not of the last `count` requests were not foretold.
bool NewBeginning::were_strange(std::uint32_t count) const noexcept {
  return 2 * static_cast<std::uint32_t>(__builtin_popcount(strange_ & ((1u << count) - 1))) >= count;
}

std::int64_t NewBeginning::read(const Step& step, std::size_t count) noexcept {
  if (step.positions.empty()) return kNoPosition;
  values_.assign(step.variable_bytes.size(), 0);
  const auto length = static_cast<std::int64_t>(step.positions.size());
  std::int64_t next = 0;
  std::size_t num_tellers = 0;
  std::size_t num_followers = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const Bytes requested = recent_[(next_ - count + i) % kRing];
    // The first one has the first position; of what follows so many may be left out in all.
    const std::int64_t end = i == 0 ? 1 : std::min(length, static_cast<std::int64_t>(i) + kMostLeftOut + 1);
    const std::int64_t position = place_of(step, requested, next, end);
    if (position == kNoPosition) return kNoPosition;
    const SizeModel& model = step.positions[static_cast<std::size_t>(position)].model;
    if (model.defines) {
      values_[static_cast<std::size_t>(model.variable)] = requested;
      ++num_tellers;
    } else if (model.variable != kNoVariable) {
      ++num_followers;
    }
    next = position + 1;
  }
  // One that tells a variable may be any request: the sizes of others must bear it out.
  const std::size_t borne_out = count - num_tellers;
  const std::size_t least = count == kProof ? 2 * kProof / 3 : num_tellers == 0 || num_followers > 0 ? 1 : 2;
  return borne_out >= least ? next - 1 : kNoPosition;
}

// The first position in [from, end) that foretells the request; one near that it may tell a variable at before one further on.
std::int64_t NewBeginning::place_of(const Step& step, Bytes requested, std::int64_t from, std::int64_t end) const noexcept {
  const Bytes rounded = round_up(requested, kAlignment);
  if (from < end && comes_at(step, from, rounded)) return from;
  for (std::int64_t at = from; at < std::min(end, from + kTellersAhead); ++at) {
    const SizeModel& model = step.positions[static_cast<std::size_t>(at)].model;
    if (model.defines && may_tell(requested, step.variable_bytes[static_cast<std::size_t>(model.variable)])) return at;
  }
  for (std::int64_t at = from + 1; at < end; ++at)
    if (comes_at(step, at, rounded)) return at;
  return kNoPosition;
}

bool NewBeginning::comes_at(const Step& step, std::int64_t position, Bytes rounded) const noexcept {
  const DynamicSequence::Position& there = step.positions[static_cast<std::size_t>(position)];
  if (there.model.variable == kNoVariable) return there.size == rounded;
  if (there.model.defines) return false;
  const Bytes value = values_[static_cast<std::size_t>(there.model.variable)];
  return value > 0 && there.model.bytes_at(value) == rounded;
}

}  // namespace stalloc
