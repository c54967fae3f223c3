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

  DynamicSequence() = default;
  DynamicSequence(const Sequence* sequence, const std::vector<Position>& positions);

  const Sequence& sequence() const noexcept { return *sequence_; }
  std::int64_t length() const noexcept { return static_cast<std::int64_t>(weights_.size()); }
  bool is_dynamic(std::int64_t position) const noexcept { return weights_[static_cast<std::size_t>(position)] == 0; }
  // How much a request that comes as foretold speaks for the position, in bits; 0 where it is dynamic.
  std::int32_t weight(std::int64_t position) const noexcept { return weights_[static_cast<std::size_t>(position)]; }
  // The positions in [from, to) that are not dynamic.
  std::int32_t num_firm(std::int64_t from, std::int64_t to) const noexcept {
    return firm_before_[static_cast<std::size_t>(to)] - firm_before_[static_cast<std::size_t>(from)];
  }
  const SizeSet& constants() const noexcept { return constants_; }

 private:
  const Sequence* sequence_ = nullptr;
  std::vector<std::uint8_t> weights_;
  std::vector<std::int32_t> firm_before_;  // one more than positions
  SizeSet constants_;
};

// Keeps several guesses about where the run is, each with a score: what came as foretold speaks for a guess, what did
// not against it. The best one answers. A run that is in step has one guess; a disagreement splits it into those that the
// request was extra, that it came in place of the one foretold, and that the run went on further ahead, and the next
// requests tell which was right. Nothing here allocates.
class DynamicMatcher {
 public:
  static constexpr std::int64_t kNoPosition = SequenceMatcher::kNoPosition;

  // As SequenceMatcher::begin.
  void begin(const DynamicSequence* script, const Bytes* expected) noexcept;
  // A size that some request of this step that is not dynamic will have, now that its variable is known.
  void note_firm_size(Bytes size) noexcept { firm_sizes_.insert(size); }
  // Where the best guess is, and how many requests in a row have found no position.
  std::int64_t cursor() const noexcept { return guesses_[0].cursor; }
  std::size_t num_lost() const noexcept { return num_lost_; }
  // Gives up all guesses: the next request is at `position`.
  void go_to(std::int64_t position) noexcept {
    guesses_[0] = Guess{position, 0, kNoPosition, 0, false};
    num_guesses_ = 1;
    num_lost_ = 0;
  }
  // The position that foretells a request of `size` bytes, or kNoPosition. `may_be(position)` says whether a position
  // whose size is not known may be this request.
  template <typename MayBe>
  std::int64_t match(Bytes size, MayBe may_be) noexcept {
    if (script_ == nullptr) return kNoPosition;
    recent_ = {recent_[1], recent_[2], size};
    if (num_guesses_ == 1 && foretells(guesses_[0].cursor, size)) {
      ++guesses_[0].num_followed;
      num_lost_ = 0;
      return guesses_[0].cursor++;
    }
    num_next_ = 0;
    for (std::size_t i = 0; i < num_guesses_; ++i) {
      const Guess guess = guesses_[i];
      if (foretells(guess.cursor, size)) {
        add({guess.cursor + 1, guess.score + weight_at(guess.cursor), guess.cursor, guess.num_followed + 1, guess.leapt});
        continue;
      }
      const bool is_firm_size = firm_sizes_.contains(size);
      if (is_open(guess, is_firm_size) && may_be(guess.cursor)) {
        add({guess.cursor + 1, guess.score + (is_firm_size ? kUnlikely : kSurprise), guess.cursor, guess.num_followed + 1, guess.leapt});
        if (!is_firm_size) continue;
      } else {
        add({guess.cursor + 1, guess.score + kReplaced, kNoPosition, 0, guess.leapt});
      }
      add({guess.cursor, guess.score + kExtra, kNoPosition, 0, guess.leapt});
      if (i == 0) add_leaps(guess, size);
    }
    return choose();
  }

 private:
  struct Guess {
    std::int64_t cursor = 0;               // the position that comes next
    std::int32_t score = 0;                // 0: the best
    std::int64_t position = kNoPosition;  // that the latest request had
    std::int64_t num_followed = 0;         // requests since the latest disagreement
    bool leapt = false;                    // further ahead than the best guess
  };
  static constexpr std::size_t kMaxGuesses = 12;  // one half of them those that leapt
  static constexpr std::size_t kMaxNext = 4 * kMaxGuesses;
  static constexpr std::int32_t kForetoldDynamic = 2;
  static constexpr std::int32_t kSurprise = 0;   // a dynamic request of any size
  static constexpr std::int32_t kUnlikely = -1;  // the same, of a size that others have
  static constexpr std::int32_t kReplaced = -4;
  static constexpr std::int32_t kExtra = -3;
  static constexpr std::int32_t kLeap = -6;
  static constexpr std::int64_t kPassedPerPoint = 3;  // positions that a leap passes over for each point
  static constexpr std::int32_t kWorstLeap = 120;
  static constexpr std::int32_t kTooBad = -128;
  static constexpr std::int64_t kInStep = 8;
  static constexpr std::int64_t kReach = 512;
  static constexpr std::int64_t kPairReach = 4096;

  std::int32_t weight_at(std::int64_t position) const noexcept {
    return script_->is_dynamic(position) ? kForetoldDynamic : script_->weight(position);
  }
  bool foretells(std::int64_t position, Bytes size) const noexcept {
    return position < script_->length() && expected_[position] == size;
  }
  // A dynamic request may have any size. One that tells a variable of the batch may have a size that others have only
  // where all went well before: to mistake it costs all that follow the variable.
  bool is_open(const Guess& guess, bool is_firm_size) const noexcept {
    if (guess.cursor >= script_->length()) return false;
    if (script_->is_dynamic(guess.cursor)) return true;
    return expected_[guess.cursor] == kAnySize && (!is_firm_size || guess.num_followed >= std::min(kInStep, guess.cursor));
  }
  void add(const Guess& guess) noexcept;
  void add_leaps(const Guess& guess, Bytes size) noexcept;
  void add_leap(const Guess& guess, std::int64_t position) noexcept;
  std::int64_t choose() noexcept;

  const DynamicSequence* script_ = nullptr;
  const Bytes* expected_ = nullptr;
  SizeSet firm_sizes_;
  std::array<Guess, kMaxGuesses> guesses_{};  // best first
  std::size_t num_guesses_ = 0;
  std::size_t num_lost_ = 0;
  std::array<Guess, kMaxNext> next_{};
  std::size_t num_next_ = 0;
  std::array<Bytes, Sequence::kGramLength> recent_{};  // the last sizes asked for, newest last
};

}  // namespace stalloc
