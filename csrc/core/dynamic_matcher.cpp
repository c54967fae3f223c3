#include "core/dynamic_matcher.h"

#include <algorithm>
#include <map>
#include <tuple>

namespace stalloc {

DynamicSequence::DynamicSequence(const Sequence* sequence, const std::vector<Position>& positions)
    : sequence_(sequence) {
  using Kind = std::tuple<std::int32_t, double, double, Bytes>;
  const auto kind_of = [](const Position& position) {
    const SizeModel& model = position.model;
    return model.variable == kNoVariable ? Kind{kNoVariable, 0, 0, position.size} : Kind{model.variable, model.slope, model.base, 0};
  };
  std::map<Kind, std::size_t> counts;
  for (const Position& position : positions)
    if (!position.dynamic) ++counts[kind_of(position)];
  firm_before_.push_back(0);
  for (const Position& position : positions) {
    std::uint8_t bits = 0;
    if (!position.dynamic) {
      bits = 1;
      for (std::size_t rest = positions.size() / counts[kind_of(position)]; rest > 2 && bits < 6; rest /= 2) ++bits;
      if (position.model.variable == kNoVariable) constants_.insert(position.size);
    }
    weights_.push_back(bits);
    firm_before_.push_back(firm_before_.back() + (position.dynamic ? 0 : 1));
  }
}

void DynamicMatcher::begin(const DynamicSequence* script, const Bytes* expected) noexcept {
  script_ = script;
  expected_ = expected;
  firm_sizes_ = script->constants();
  guesses_[0] = Guess{};
  num_guesses_ = 1;
  num_lost_ = 0;
  recent_.fill(0);
}

// Of two guesses about the same place the better one stays.
void DynamicMatcher::add(const Guess& guess) noexcept {
  for (std::size_t i = 0; i < num_next_; ++i) {
    if (next_[i].cursor != guess.cursor) continue;
    if (next_[i].score < guess.score) next_[i] = guess;
    return;
  }
  if (num_next_ < kMaxNext && guess.cursor <= script_->length()) next_[num_next_++] = guess;
}

// Further ahead: to the next request of this size, and to the next places where it follows the ones before.
void DynamicMatcher::add_leaps(const Guess& guess, Bytes size) noexcept {
  const std::int64_t end = std::min(script_->length(), guess.cursor + kReach);
  std::int64_t at = guess.cursor + 1;
  while (at < end && (expected_[at] != size || script_->is_dynamic(at))) ++at;
  if (at < end) add_leap(guess, at);
  const std::int64_t pair_end = recent_[1] == 0 ? 0 : std::min(script_->length(), guess.cursor + kPairReach);
  at = guess.cursor + 1;
  while (at < pair_end && (expected_[at] != size || expected_[at - 1] != recent_[1] || script_->is_dynamic(at))) ++at;
  if (at < pair_end) add_leap(guess, at);
  const std::int64_t gram = script_->sequence().find_gram(recent_, guess.cursor);
  if (gram >= 0) add_leap(guess, gram);
}

// The more it passes over, the more must speak for it: steps repeat themselves.
void DynamicMatcher::add_leap(const Guess& guess, std::int64_t position) noexcept {
  const std::int64_t passed = position - guess.cursor + script_->num_firm(guess.cursor, position);
  const auto cost = static_cast<std::int32_t>(std::min<std::int64_t>(passed / kPassedPerPoint, kWorstLeap));
  add({position + 1, guess.score + kLeap + script_->weight(position) - cost, position, 0, true});
}

std::int64_t DynamicMatcher::choose() noexcept {
  std::sort(next_.begin(), next_.begin() + static_cast<std::ptrdiff_t>(num_next_), [](const Guess& a, const Guess& b) {
    return a.score != b.score ? a.score > b.score : a.cursor < b.cursor;
  });
  const std::int32_t best = next_[0].score;
  num_guesses_ = 0;
  std::array<std::size_t, 2> num_kept{};
  for (std::size_t i = 0; i < num_next_ && next_[i].score - best >= kTooBad; ++i) {
    if (num_kept[next_[i].leapt ? 1 : 0]++ >= kMaxGuesses / 2) continue;
    guesses_[num_guesses_] = next_[i];
    guesses_[num_guesses_++].score -= best;
  }
  guesses_[0].leapt = false;
  num_lost_ = guesses_[0].position == kNoPosition ? num_lost_ + 1 : 0;
  return guesses_[0].position;
}

}  // namespace stalloc
