#include "runtime/simulated_replay.h"

#include <algorithm>

#include "runtime/simulated_device.h"
#include "runtime/simulated_expandable.h"
#include "runtime/simulated_native.h"

namespace stalloc {
namespace {

template <typename Model>
class Replay {
 public:
  Replay(const ReplayTrace& trace, Bytes limit_bytes, const CachingOptions& options)
      : trace_(trace), device_(limit_bytes), model_(device_, options), placed_(trace.blocks.size()), meter_(trace) {}

  ReplayResult run() {
    std::int64_t died = -1;
    for (std::int64_t i = 0; i < trace_.num_events() && died < 0; ++i) {
      while (meter_.at_mark(i)) meter_.close_span(model_.stats().allocated, model_.stats().reserved);
      if (!step(trace_.events[static_cast<std::size_t>(i)])) died = i;
      meter_.observe(model_.stats().allocated, model_.stats().reserved);
    }
    while (meter_.at_mark(trace_.num_events())) meter_.close_span(model_.stats().allocated, model_.stats().reserved);
    meter_.close_last_span();
    ReplayResult result = meter_.result();
    result.died_at_event = died;
    result.flushes = model_.stats().flushes;
    result.segments_taken = model_.stats().segments_taken;
    return result;
  }

 private:
  bool step(const ReplayEvent& event) {
    if (event.begins_flush) model_.empty_cache();
    if (event.block == ReplayEvent::kNoBlock) return true;
    const ReplayBlock& block = trace_.blocks[static_cast<std::size_t>(event.block)];
    Placed& placed = placed_[static_cast<std::size_t>(event.block)];
    switch (event.action) {
      case TraceAction::kAlloc:
        placed.block = model_.allocate(block.size, block.stream);
        meter_.add_rounded(rounded_request(block.size));
        return placed.block != nullptr;
      case TraceAction::kFreeRequested:
        placed.ticket = model_.request_free(placed.block);
        meter_.add_rounded(-rounded_request(block.size));
        return true;
      case TraceAction::kFreeCompleted:
        if (block.freed == kNever) {  // the request fell into a hole of the history
          placed.ticket = model_.request_free(placed.block);
          meter_.add_rounded(-rounded_request(block.size));
        }
        model_.complete_free(placed.ticket);
        return true;
      default:
        return true;
    }
  }

  const ReplayTrace& trace_;
  SimulatedDevice device_;
  Model model_;
  struct Placed {
    SimulatedBlock* block = nullptr;
    FreeTicket ticket = 0;
  };
  std::vector<Placed> placed_;  // by the ordinal of the allocation
  StepMeter meter_;
};

}  // namespace

ReplayResult StepMeter::result() const {
  ReplayResult result;
  result.steps = figures_;
  const auto largest = [](const std::vector<Bytes>& peaks) { return *std::max_element(peaks.begin(), peaks.end()); };
  result.allocated_peak = largest(figures_.allocated_peak);
  result.reserved_peak = largest(figures_.reserved_peak);
  result.rounded_peak = largest(figures_.rounded_peak);
  return result;
}

ReplayResult replay_native(const ReplayTrace& trace, Bytes limit_bytes, const CachingOptions& options) {
  return Replay<SimulatedNative>(trace, limit_bytes, options).run();
}

ReplayResult replay_expandable(const ReplayTrace& trace, Bytes limit_bytes, const CachingOptions& options) {
  return Replay<SimulatedExpandable>(trace, limit_bytes, options).run();
}

}  // namespace stalloc
