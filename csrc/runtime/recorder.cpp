#include "runtime/recorder.h"

#include <algorithm>
#include <unordered_map>

namespace stalloc {

void Recorder::start(std::size_t capacity) {
  events_.clear();
  events_.reserve(capacity);
  step_begin_.assign(1, 0);
  mark_ = 0;
  overflowed_ = false;
  recording_ = true;
}

void Recorder::end_step() {
  if (recording_) step_begin_.push_back(static_cast<std::int64_t>(events_.size()));
  mark_ = events_.size();
}

void Recorder::forget_passing() {
  if (!recording_) return;
  std::vector<bool> passes(events_.size() - mark_, false);
  std::unordered_map<std::uint64_t, std::vector<std::size_t>> uses;  // since the mark: a live block's events, by address
  for (std::size_t i = mark_; i < events_.size(); ++i) {
    const Event& event = events_[i];
    if (event.size > 0) {
      uses[event.address] = {i};
      continue;
    }
    const auto found = uses.find(event.address);
    if (found == uses.end()) continue;
    found->second.push_back(i);
    if (event.size != kFree) continue;
    for (const std::size_t use : found->second) passes[use - mark_] = true;
    uses.erase(found);
  }
  std::size_t kept = mark_;
  for (std::size_t i = mark_; i < events_.size(); ++i)
    if (!passes[i - mark_]) events_[kept++] = events_[i];
  events_.resize(kept);
}

Trace Recorder::trace(RoleIndex num_roles) const {
  Trace trace;
  trace.events = events_;
  trace.step_begin = step_begin_;
  trace.num_roles = num_roles;
  return trace;
}

void Recorder::clear() noexcept {
  recording_ = false;
  std::vector<Event>().swap(events_);
  step_begin_.clear();
}

}  // namespace stalloc
