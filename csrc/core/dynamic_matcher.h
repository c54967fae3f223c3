// Finds a run's place in a sequence that the run does not repeat exactly: loops that make fewer passes, sizes that
// nothing foretells.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "core/plan.h"
#include "core/sequence.h"

namespace stalloc {

// A set of sizes that sometimes holds one more.
class SizeSet {
 public:
  void insert(Bytes size) noexcept { words_[word_of(size)] |= bit_of(size); }
  bool contains(Bytes size) const noexcept { return (words_[word_of(size)] & bit_of(size)) != 0; }

 private:
  static constexpr std::uint64_t hash(Bytes size) noexcept {
    return static_cast<std::uint64_t>(size / kAlignment) * 0x9e3779b97f4a7c15ULL;
  }
  static constexpr std::size_t word_of(Bytes size) noexcept { return static_cast<std::size_t>(hash(size) >> 56); }
  static constexpr std::uint64_t bit_of(Bytes size) noexcept { return std::uint64_t{1} << ((hash(size) >> 50) & 63); }

  std::array<std::uint64_t, 256> words_{};
};

// One role's sequence with what tells its places apart. Immutable.
class DynamicSequence {
 public:
  struct Position {
    bool dynamic = false;  // its size is not relied on
    SizeModel model;
    Bytes size = 0;
  };
  static constexpr std::int32_t kForetoldDynamic = 3;
  static constexpr std::int32_t kRare = 5;

  DynamicSequence() = default;
  explicit DynamicSequence(const std::vector<Position>& positions);

  std::int64_t length() const noexcept { return static_cast<std::int64_t>(weights_.size()); }
  bool is_dynamic(std::int64_t position) const noexcept { return weights_[static_cast<std::size_t>(position)] == 0; }
  // How much a request that comes as foretold speaks for the position, in bits.
  std::int32_t gain(std::int64_t position) const noexcept {
    return is_dynamic(position) ? kForetoldDynamic : weights_[static_cast<std::size_t>(position)];
  }
  // Few positions have its size.
  bool is_rare(std::int64_t position) const noexcept { return weights_[static_cast<std::size_t>(position)] >= kRare; }
  // Of the positions that are not dynamic and follow no variable: their sizes, and those of them that are rare.
  const SizeSet& constants() const noexcept { return constants_; }
  const SizeSet& rare_constants() const noexcept { return rare_constants_; }

 private:
  std::vector<std::uint8_t> weights_;  // 0: dynamic
  SizeSet constants_;
  SizeSet rare_constants_;
};

// Aligns the run with the sequence while it goes on. A state is a place where the run may be, with a score in bits: what
// came as foretold speaks for a place, what did not against it. Each request moves every state on: it was the request
// foretold there, or one further ahead, so that those between were left out, or an extra one. The best state answers. A run
// that is in step has one state. Nothing here allocates.
class DynamicMatcher {
 public:
  static constexpr std::int64_t kNoPosition = SequenceMatcher::kNoPosition;

  // As SequenceMatcher::begin.
  void begin(const DynamicSequence* script, const Bytes* expected) noexcept;
  // The size of `position`, which is not dynamic, now that its variable is known.
  void note_firm_size(std::int64_t position, Bytes size) noexcept {
    firm_sizes_.insert(size);
    if (script_->is_rare(position)) rare_sizes_.insert(size);
  }
  // Where the best state is, and how many requests in a row have found no position.
  std::int64_t cursor() const noexcept { return states_[best_].cursor; }
  std::size_t num_lost() const noexcept { return num_lost_; }
  // Gives up all states: the next request is at `position`.
  void go_to(std::int64_t position) noexcept;
  // The position that foretells a request of `size` bytes, or kNoPosition. `may_be(position)` says whether a position
  // whose size is not known may be this request.
  template <typename MayBe>
  std::int64_t match(Bytes size, MayBe may_be) noexcept {
    if (script_ == nullptr) return kNoPosition;
    if (num_states_ == 1 && foretells(states_[0].cursor, size)) {
      num_lost_ = 0;
      ++num_followed_;
      return states_[0].cursor++;
    }
    const Request request{size, firm_sizes_.contains(size), rare_sizes_.contains(size)};
    const bool is_foretold = foretells(states_[best_].cursor, size);
    num_next_ = 0;
    std::size_t state = 0;
    std::int32_t passing = kNone;  // of the best way to `at` that leaves out what comes before it
    for (std::int64_t at = states_[0].cursor;; ++at) {
      std::int32_t score = passing;
      std::int32_t leaving = passing;
      if (state < num_states_ && states_[state].cursor == at) {
        score = std::max(score, states_[state].score);
        leaving = std::max(leaving, states_[state].score - kSomeLeftOut);
        add(at, states_[state].score - extra_cost(request), kNoPosition);
        ++state;
      }
      if (score < kTooBad || at >= script_->length()) {
        if (state == num_states_) break;
        at = states_[state].cursor - 1;
        passing = kNone;
        continue;
      }
      const std::int32_t gain = gain_at(at, request, may_be);
      if (gain != kNone) add(at + 1, score + gain, at);
      passing = leaving - (script_->is_dynamic(at) ? kDynamicLeftOut : kFirmLeftOut);
    }
    if (request.is_firm && !is_foretold) add_leaps(request);
    const std::int64_t position = choose();
    if (position != kNoPosition) likely_ = 0;
    return position == kNoPosition && request.is_firm && size >= kLarge ? likely_position(size) : position;
  }

 private:
  struct State {
    std::int64_t cursor = 0;  // the position that comes next
    std::int64_t position = kNoPosition;  // that the latest request had
    std::int32_t score = 0;               // 0: the best
  };
  struct Request {
    Bytes size;
    bool is_firm;  // the size of some position that is not dynamic
    bool is_rare;
  };
  static constexpr std::size_t kMaxStates = 256;
  static constexpr std::size_t kMaxLeaps = 24;
  static constexpr std::int64_t kReachAhead = 1024;
  static constexpr std::int64_t kReachBack = 64;
  // In bits.
  static constexpr std::int32_t kNone = -(1 << 20);
  static constexpr std::int32_t kTooBad = -32;
  static constexpr std::int32_t kExtra = 3;
  static constexpr std::int32_t kSomeLeftOut = 3;  // requests in a row, whatever their number; and each:
  static constexpr std::int32_t kFirmLeftOut = 2;
  static constexpr std::int32_t kDynamicLeftOut = 1;
  static constexpr std::int32_t kLeap = 12;
  static constexpr std::int64_t kPassedPerBit = 4;
  static constexpr std::int32_t kFirmMissed = 2;  // a request of a size that others have, without a place that foretells it
  static constexpr std::int32_t kRareMissed = 6;
  static constexpr std::int32_t kOtherSize = 4;  // a dynamic request of another size than its variable foretells
  static constexpr std::int64_t kInStep = 8;
  static constexpr Bytes kLarge = Bytes{1} << 20;

  // A routed size of a few granules soon is that of some other request by chance.
  static std::int32_t missed_cost(const Request& request) noexcept {
    if (!request.is_firm) return 0;
    std::int32_t bits = 0;
    const std::int32_t most = request.is_rare ? kRareMissed : kFirmMissed;
    for (Bytes granules = request.size / kAlignment; granules > 1 && bits < most; granules /= 2) ++bits;
    return bits;
  }
  static std::int32_t extra_cost(const Request& request) noexcept { return kExtra + missed_cost(request); }
  bool foretells(std::int64_t position, Bytes size) const noexcept {
    return position < script_->length() && expected_[position] == size;
  }
  // What speaks for the request to be the one at this position; kNone where it cannot be.
  template <typename MayBe>
  std::int32_t gain_at(std::int64_t position, const Request& request, MayBe may_be) const noexcept {
    const Bytes expected = expected_[position];
    if (expected == request.size) return script_->gain(position);
    if (script_->is_dynamic(position)) {
      if (!may_be(position)) return kNone;
      return -missed_cost(request) - (expected >= 0 ? kOtherSize : 0);
    }
    // To mistake the request that tells a variable of the batch costs all that follow it.
    if (expected != kAnySize || !may_be(position)) return kNone;
    return request.is_firm && num_followed_ < std::min(kInStep, position) ? kNone : -missed_cost(request);
  }
  void add(std::int64_t cursor, std::int32_t score, std::int64_t position) noexcept;
  void add_leaps(const Request& request) noexcept;
  void add_leap(std::int64_t position, std::int64_t distance) noexcept;
  std::int64_t choose() noexcept;
  std::int64_t likely_position(Bytes size) noexcept;

  const DynamicSequence* script_ = nullptr;
  const Bytes* expected_ = nullptr;
  SizeSet firm_sizes_;
  SizeSet rare_sizes_;  // some of firm_sizes_
  std::array<State, kMaxStates> states_{};  // by cursor
  std::array<State, kMaxStates> next_{};
  std::size_t num_states_ = 1;
  std::size_t num_next_ = 0;
  std::size_t best_ = 0;
  std::size_t num_lost_ = 0;
  std::int64_t likely_ = 0;  // behind the last likely position; requests in a row are not taken for one and the same
  std::int64_t num_followed_ = 0;  // requests in a row that the best state foretold
};

}  // namespace stalloc
