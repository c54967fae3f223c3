// What a recorder saw: a run's allocations and frees in order, cut into steps.
#pragma once

#include <cstdint>
#include <vector>

#include "core/types.h"

namespace stalloc {

struct Event {
  std::uint64_t address = 0;
  Bytes size = 0;      // as requested; > 0 allocation, kFree a free, kRecordStream a use by another stream
  RoleIndex role = 0;  // of the allocation; of the recorded stream for kRecordStream
  std::uint32_t reserved = 0;
};
static_assert(sizeof(Event) == 24);

inline constexpr Bytes kFree = 0;
inline constexpr Bytes kRecordStream = -1;

struct Trace {
  std::vector<Event> events;
  // Indices of events: step i is [step_begin[i], step_begin[i + 1]). The first entry is 0; events after the
  // last entry belong to a step that has not ended.
  std::vector<std::int64_t> step_begin;
  RoleIndex num_roles = 0;

  std::int64_t num_steps() const noexcept {
    return step_begin.empty() ? 0 : static_cast<std::int64_t>(step_begin.size()) - 1;
  }
};

}  // namespace stalloc
