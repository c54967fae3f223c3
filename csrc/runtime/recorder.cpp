#include "runtime/recorder.h"

namespace stalloc {

void Recorder::start(std::size_t capacity) {
  events_.clear();
  events_.reserve(capacity);
  step_begin_.assign(1, 0);
  overflowed_ = false;
  recording_ = true;
}

void Recorder::end_step() {
  if (recording_) step_begin_.push_back(static_cast<std::int64_t>(events_.size()));
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
