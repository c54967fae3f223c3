#include "runtime/simulated_trace.h"

#include <string>
#include <unordered_map>

namespace stalloc {
namespace {

constexpr Bytes kLargestSize = Bytes{1} << 40;  // so that no sum over a history leaves 63 bits

void check_steps(const std::vector<std::int64_t>& step_begin, std::size_t count) {
  std::int64_t last = 0;
  for (const std::int64_t begin : step_begin) {
    if (begin < last || begin > static_cast<std::int64_t>(count)) {
      throw Error("replay refused the step marks: mark=" + std::to_string(begin) +
                  ", marks are event indices in order, up to " + std::to_string(count) + ". Correct the marks file.");
    }
    last = begin;
  }
}

// Blocks by address while they live. A block leaves when its free is complete.
class LiveBlocks {
 public:
  explicit LiveBlocks(ReplayTrace& trace) : trace_(trace) { live_.reserve(1 << 14); }

  std::int32_t allocate(std::uint64_t address, Bytes size, StreamHandle stream, std::int64_t index) {
    const auto block = static_cast<std::int32_t>(trace_.blocks.size());
    trace_.blocks.push_back({size, stream, index, kNever, kNever});
    const auto [it, is_new] = live_.try_emplace(address, block);
    if (!is_new) {
      // Its free fell into a hole of the history: it ends here at the latest.
      ReplayBlock& lost = trace_.blocks[static_cast<std::size_t>(it->second)];
      if (lost.freed == kNever) ++trace_.double_births;
      it->second = block;
    }
    return block;
  }

  std::int32_t find(std::uint64_t address) {
    const auto it = live_.find(address);
    if (it != live_.end()) return it->second;
    ++trace_.unknown_frees;
    return ReplayEvent::kNoBlock;
  }

  void remove(std::uint64_t address) { live_.erase(address); }

 private:
  ReplayTrace& trace_;
  std::unordered_map<std::uint64_t, std::int32_t> live_;
};

}  // namespace

ReplayTrace make_replay_trace(const std::uint8_t* actions, const std::uint64_t* addresses, const std::int64_t* sizes,
                              const std::uint64_t* streams, std::size_t count, std::vector<std::int64_t> step_begin) {
  check_steps(step_begin, count);
  ReplayTrace trace;
  trace.events.resize(count);
  trace.step_begin = std::move(step_begin);
  LiveBlocks live(trace);
  bool in_burst = false;
  for (std::size_t i = 0; i < count; ++i) {
    ReplayEvent& event = trace.events[i];
    const auto index = static_cast<std::int64_t>(i);
    event.action = actions[i] < static_cast<std::uint8_t>(TraceAction::kOther) ? static_cast<TraceAction>(actions[i])
                                                                                : TraceAction::kOther;
    const bool releases = event.action == TraceAction::kSegmentFree || event.action == TraceAction::kSegmentUnmap;
    event.begins_flush = releases && !in_burst;
    in_burst = releases;
    if (event.action == TraceAction::kAlloc) {
      if (sizes[i] < 0 || sizes[i] > kLargestSize) {
        throw Error("replay refused the trace: event=" + std::to_string(i) + ", size=" + std::to_string(sizes[i]) +
                    ", a size is in [0, 2^40] bytes. The file is damaged or hostile.");
      }
      event.block = live.allocate(addresses[i], sizes[i], streams[i], index);
    } else if (event.action == TraceAction::kFreeRequested) {
      event.block = live.find(addresses[i]);
      if (event.block == ReplayEvent::kNoBlock) continue;
      ReplayBlock& block = trace.blocks[static_cast<std::size_t>(event.block)];
      if (block.freed == kNever) {
        block.freed = index;
      } else {
        event.block = ReplayEvent::kNoBlock;  // asked twice
      }
    } else if (event.action == TraceAction::kFreeCompleted) {
      event.block = live.find(addresses[i]);
      if (event.block == ReplayEvent::kNoBlock) continue;
      ReplayBlock& block = trace.blocks[static_cast<std::size_t>(event.block)];
      block.done = index;
      live.remove(addresses[i]);
    }
  }
  return trace;
}

}  // namespace stalloc
