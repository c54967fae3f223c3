#include "core/dynamic_matcher.h"

#include <algorithm>
#include <map>
#include <tuple>

namespace stalloc {

DynamicSequence::DynamicSequence(const std::vector<Position>& positions) {
  constexpr std::uint8_t kMost = 6;
  using Kind = std::tuple<std::int32_t, double, double, Bytes>;
  const auto kind_of = [](const Position& position) {
    const SizeModel& model = position.model;
    return model.variable == kNoVariable ? Kind{kNoVariable, 0, 0, position.size} : Kind{model.variable, model.slope, model.base, 0};
  };
  std::map<Kind, std::size_t> counts;
  for (const Position& position : positions)
    if (!position.dynamic) ++counts[kind_of(position)];
  for (const Position& position : positions) {
    std::uint8_t bits = 0;
    if (!position.dynamic) {
      bits = 1;
      for (std::size_t rest = positions.size() / counts[kind_of(position)]; rest > 2 && bits < kMost; rest /= 2) ++bits;
      if (position.model.variable == kNoVariable) constants_.insert(position.size);
      if (position.model.variable == kNoVariable && bits >= kRare) rare_constants_.insert(position.size);
    }
    weights_.push_back(bits);
  }
}

void DynamicMatcher::begin(const DynamicSequence* script, const Bytes* expected) noexcept {
  script_ = script;
  expected_ = expected;
  firm_sizes_ = script->constants();
  rare_sizes_ = script->rare_constants();
  go_to(0);
}

void DynamicMatcher::go_to(std::int64_t position) noexcept {
  states_[0] = State{position, kNoPosition, 0};
  num_states_ = 1;
  best_ = 0;
  num_lost_ = 0;
  likely_ = 0;
  num_followed_ = 0;
}

// Cursors come in order. Of two ways to one place the better one stays.
void DynamicMatcher::add(std::int64_t cursor, std::int32_t score, std::int64_t position) noexcept {
  if (score < kTooBad) return;
  if (num_next_ > 0 && next_[num_next_ - 1].cursor == cursor) {
    if (next_[num_next_ - 1].score < score) next_[num_next_ - 1] = State{cursor, position, score};
  } else if (num_next_ < kMaxStates - kMaxLeaps) {
    next_[num_next_++] = State{cursor, position, score};
  }
}

// To the next requests of a size that few have, past passes of a loop that were not made; and a little back, to make a pass
// once more.
void DynamicMatcher::add_leaps(const Request& request) noexcept {
  const std::int64_t from = states_[best_].cursor;
  const auto fits = [&](std::int64_t at) { return expected_[at] == request.size && !script_->is_dynamic(at); };
  std::size_t num_leaps = 0;
  for (std::int64_t at = from - 1; at >= std::max<std::int64_t>(0, from - kReachBack) && num_leaps < kMaxLeaps / 2; --at) {
    if (!fits(at)) continue;
    add_leap(at, from - at);
    ++num_leaps;
  }
  if (!request.is_rare) return;
  const std::int64_t end = std::min(script_->length(), from + kReachAhead);
  for (std::int64_t at = from + 1; at < end && num_leaps < kMaxLeaps; ++at) {
    if (!fits(at)) continue;
    add_leap(at, at - from);
    ++num_leaps;
  }
}

void DynamicMatcher::add_leap(std::int64_t position, std::int64_t distance) noexcept {
  const State leap{position + 1, position, script_->gain(position) - kLeap - static_cast<std::int32_t>(distance / kPassedPerBit)};
  if (leap.score < kTooBad) return;
  const auto end = next_.begin() + static_cast<std::ptrdiff_t>(num_next_);
  const auto place = std::lower_bound(next_.begin(), end, leap.cursor,
                                      [](const State& state, std::int64_t cursor) { return state.cursor < cursor; });
  if (place != end && place->cursor == leap.cursor) {
    if (place->score < leap.score) *place = leap;
    return;
  }
  std::copy_backward(place, end, end + 1);
  *place = leap;
  ++num_next_;
}

std::int64_t DynamicMatcher::choose() noexcept {
  std::int32_t most = kNone;
  for (std::size_t i = 0; i < num_next_; ++i) most = std::max(most, next_[i].score);
  const std::int64_t expected_position = states_[best_].cursor;
  num_states_ = 0;
  best_ = kMaxStates;
  for (std::size_t i = 0; i < num_next_; ++i) {
    if (next_[i].score - most < kTooBad) continue;
    if (best_ == kMaxStates && next_[i].score == most) best_ = num_states_;
    states_[num_states_] = next_[i];
    states_[num_states_++].score -= most;
  }
  const std::int64_t position = states_[best_].position;
  num_lost_ = position == kNoPosition ? num_lost_ + 1 : 0;
  num_followed_ = position == expected_position ? num_followed_ + 1 : 0;
  return position;
}

// What comes first behind a loop that ended early, such as a layer's output, looks like an extra request until others have
// followed. A large one is taken for the next of its size: to take it for one that soon ends costs most.
std::int64_t DynamicMatcher::likely_position(Bytes size) noexcept {
  const std::int64_t from = std::max(states_[best_].cursor, likely_);
  const std::int64_t end = std::min(script_->length(), from + kReachAhead);
  for (std::int64_t at = from; at < end; ++at) {
    if (expected_[at] != size) continue;
    likely_ = at + 1;
    return at;
  }
  return kNoPosition;
}

}  // namespace stalloc
