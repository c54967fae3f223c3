// Tells by the last requests of a role that its step has begun anew: an evaluation that came before took up the sequence.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "core/dynamic_matcher.h"
#include "core/plan.h"

namespace stalloc {

// Reads the last requests as the first ones of a step. Each of them must be one of its requests, but positions may be left
// out: what an evaluation has gathered already is not gathered again. Only make_room() allocates.
class NewBeginning {
 public:
  static constexpr std::int64_t kNoPosition = -1;
  static constexpr std::size_t kProof = 12;  // requests that show that the step has begun anew

  // What one role asks for in a step, and the largest value of each variable that was met.
  struct Step {
    const std::vector<DynamicSequence::Position>& positions;
    const std::vector<Bytes>& variable_bytes;
  };

  void make_room(std::size_t num_variables) { values_.reserve(num_variables); }
  void forget() noexcept { strange_ = num_noted_ = 0; }
  // `was_foretold`: it came where the cursor stood.
  void note(Bytes requested, bool was_foretold) noexcept {
    recent_[next_++ % kRing] = requested;
    strange_ = (strange_ << 1) | (was_foretold ? 0u : 1u);
    if (num_noted_ < kMostNoted) ++num_noted_;
  }
  // None of the last requests came as a surprise.
  bool is_in_order() const noexcept { return (strange_ & kLast) == 0; }
  // The position of the last request if the last kProof ones are the first ones of the step and the cursor was elsewhere.
  // values() then are what they tell of its variables, 0 where they tell nothing.
  std::int64_t find_proven(const Step& step) noexcept;
  // The same of fewer requests, as many as can be, if the last one or most of late came as a surprise.
  std::int64_t find_likely(const Step& step) noexcept;
  const std::vector<Bytes>& values() const noexcept { return values_; }

  // A request of `requested` bytes may tell the value of a variable of which `most` was met; `times`: in wider bounds.
  static bool may_tell(Bytes requested, Bytes most, Bytes times = 1) noexcept {
    return requested <= times * kMostTimes * most && requested * times * kLeastShare >= most;
  }

 private:
  static constexpr Bytes kLeastShare = 64;  // 1/64
  static constexpr Bytes kMostTimes = 4;
  static constexpr std::uint32_t kRing = 16;  // no less than kProof
  static constexpr std::uint32_t kLast = (1u << kProof) - 1;
  static constexpr std::uint32_t kMostNoted = 32;
  static constexpr std::uint32_t kBefore = 4;  // requests before a beginning that tell how the cursor does
  static constexpr int kMinStrange = 4;
  static constexpr std::int64_t kMostLeftOut = 32;
  static constexpr std::int64_t kTellersAhead = 2;

  bool were_strange(std::uint32_t count) const noexcept;
  std::int64_t read(const Step& step, std::size_t count) noexcept;
  std::int64_t place_of(const Step& step, Bytes requested, std::int64_t from, std::int64_t end) const noexcept;
  bool comes_at(const Step& step, std::int64_t position, Bytes rounded) const noexcept;

  std::array<Bytes, kRing> recent_{};
  std::uint32_t next_ = 0;
  std::uint32_t strange_ = 0;  // one bit a request, the newest the lowest
  std::uint32_t num_noted_ = 0;
  std::vector<Bytes> values_;  // by variable
};

}  // namespace stalloc
