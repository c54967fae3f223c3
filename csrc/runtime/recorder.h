// Keeps the events of a run in storage that is set aside beforehand, so that recording costs a store.
// Not thread-safe: the engine's lock guards it.
#pragma once

#include "core/trace.h"

namespace stalloc {

class Recorder {
 public:
  // Forgets what was recorded and sets aside room for `capacity` events.
  void start(std::size_t capacity);
  void stop() noexcept { recording_ = false; }

  void allocation(const void* ptr, Bytes size, RoleIndex role) noexcept { push(ptr, size, role); }
  void free(const void* ptr) noexcept { push(ptr, kFree, 0); }
  void stream_use(const void* ptr, RoleIndex role) noexcept { push(ptr, kRecordStream, role); }
  void end_step();
  // A mark between steps, and forgetting what was both allocated and freed since it, or since the step's boundary.
  void mark() noexcept { mark_ = events_.size(); }
  void forget_passing();

  bool is_recording() const noexcept { return recording_; }
  // The room ran out: the recording has stopped and what it holds ends early.
  bool overflowed() const noexcept { return overflowed_; }
  Trace trace(RoleIndex num_roles) const;
  void clear() noexcept;  // gives the storage back

 private:
  void push(const void* ptr, Bytes size, RoleIndex role) noexcept {
    if (!recording_) return;
    if (events_.size() == events_.capacity()) {
      recording_ = false;
      overflowed_ = true;
      return;
    }
    events_.push_back({reinterpret_cast<std::uint64_t>(ptr), size, role, 0});
  }

  bool recording_ = false;
  bool overflowed_ = false;
  std::vector<Event> events_;
  std::vector<std::int64_t> step_begin_;
  std::size_t mark_ = 0;  // an event of the present step
};

}  // namespace stalloc
