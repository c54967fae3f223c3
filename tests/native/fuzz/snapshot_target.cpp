#include <algorithm>
#include <cstring>

#include "core/snapshot_reader.h"
#include "fuzz/targets.h"
#include "runtime/simulated_replay.h"
#include "runtime/simulated_trace.h"

namespace stalloc {

void fuzz_snapshot(const std::uint8_t* data, std::size_t size) {
  try {
    std::size_t at = 0;
    const PickleTree tree([&](char* buffer, std::size_t capacity) {
      const std::size_t count = std::min(capacity, size - at);
      if (count > 0) std::memcpy(buffer, data + at, count);
      at += count;
      return count;
    });
    SnapshotReader reader(tree);
    reader.read();
    reader.stacks().frames();
    for (const SnapshotEvents& events : reader.devices()) {
      fuzz_events += static_cast<std::int64_t>(events.action.size());
      const ReplayTrace trace = make_replay_trace(events.action.data(), events.address.data(), events.size.data(),
                                                  events.stream.data(), events.action.size(), {});
      replay_native(trace, Bytes{1} << 34, {});
      replay_expandable(trace, 0, {});
    }
  } catch (const Error&) {
    // Refused, as most are.
  }
}

}  // namespace stalloc
