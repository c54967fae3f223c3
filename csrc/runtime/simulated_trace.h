// A recorded history made ready for replay: each free knows the allocation it ends.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/types.h"

namespace stalloc {

// What a snapshot's events are called there, in the order of this code.
enum class TraceAction : std::uint8_t {
  kAlloc = 0,
  kFreeRequested,
  kFreeCompleted,
  kSegmentAlloc,
  kSegmentFree,
  kSegmentMap,
  kSegmentUnmap,
  kOther,
};

struct ReplayEvent {
  static constexpr std::int32_t kNoBlock = -1;

  TraceAction action = TraceAction::kOther;
  bool begins_flush = false;     // first of a burst of released segments: the program emptied the cache
  std::int32_t block = kNoBlock; // ordinal of the allocation
};

struct ReplayBlock {
  Bytes size = 0;  // as requested
  StreamHandle stream = 0;
  std::int64_t born = 0;        // event indices
  std::int64_t freed = kNever;  // requested
  std::int64_t done = kNever;   // completed: no stream uses it any more

  // Some other stream had used it: at the free its work was not done.
  bool was_recorded() const noexcept { return freed != kNever && done != freed + 1; }
};

struct ReplayTrace {
  std::vector<ReplayEvent> events;
  std::vector<ReplayBlock> blocks;
  std::vector<std::int64_t> step_begin;  // the last is the end of the last step
  std::int64_t unknown_frees = 0;        // of blocks that the trace never saw allocated
  std::int64_t double_births = 0;        // an address allocated while it was live: the history has a hole

  std::int64_t num_events() const noexcept { return static_cast<std::int64_t>(events.size()); }
};

// Arrays of `count` events. Throws Error on a size <= 0 of an allocation, a size above 2^50, or step marks
// that are no event indices in order; two are the same where a step asked for nothing.
ReplayTrace make_replay_trace(const std::uint8_t* actions, const std::uint64_t* addresses, const std::int64_t* sizes,
                              const std::uint64_t* streams, std::size_t count, std::vector<std::int64_t> step_begin);

}  // namespace stalloc
