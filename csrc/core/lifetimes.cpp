#include "core/lifetimes.h"

#include <algorithm>
#include <unordered_map>

namespace stalloc {
namespace {

void check_trace(const Trace& trace) {
  const auto num_events = static_cast<std::int64_t>(trace.events.size());
  if (!std::is_sorted(trace.step_begin.begin(), trace.step_begin.end()) ||
      (!trace.step_begin.empty() && (trace.step_begin.front() != 0 || trace.step_begin.back() > num_events)))
    throw Error("Trace refused: step_begin.size=" + std::to_string(trace.step_begin.size()) +
                ", must rise from 0 to at most the number of events. Record the trace again.");
  for (const Event& event : trace.events)
    if (event.size != kFree && (event.role < 0 || event.role >= trace.num_roles))
      throw Error("Trace refused: event.role=" + std::to_string(event.role) +
                  ", must be one of the trace's roles. Record the trace again.");
}

}  // namespace

std::int64_t Lifetimes::step_of(Tick tick) const noexcept {
  return std::upper_bound(step_begin.begin(), step_begin.end(), tick) - step_begin.begin() - 1;
}

Lifetimes lifetimes_of(const Trace& trace) {
  check_trace(trace);
  Lifetimes result;
  result.num_steps = trace.num_steps();
  std::unordered_map<std::uint64_t, std::size_t> live;
  std::vector<std::int64_t> positions(static_cast<std::size_t>(std::max<RoleIndex>(trace.num_roles, 0)), 0);
  std::int64_t step = -1;
  Tick tick = 0;
  const auto enter_steps = [&](std::int64_t event_index) {
    while (step + 1 < static_cast<std::int64_t>(trace.step_begin.size()) &&
           trace.step_begin[static_cast<std::size_t>(step + 1)] <= event_index) {
      ++step;
      result.step_begin.push_back(tick);
      std::fill(positions.begin(), positions.end(), 0);
    }
  };
  for (std::size_t i = 0; i < trace.events.size(); ++i) {
    enter_steps(static_cast<std::int64_t>(i));
    const Event& event = trace.events[i];
    if (event.size > 0) {
      live[event.address] = result.blocks.size();
      result.blocks.push_back({event.size, tick++, kNever, step,
                               positions[static_cast<std::size_t>(event.role)]++, event.role, false});
      continue;
    }
    const auto found = live.find(event.address);
    if (found == live.end()) continue;
    Block& block = result.blocks[found->second];
    if (event.size == kRecordStream) {
      block.used_elsewhere |= event.role != block.role;
      continue;
    }
    block.death = tick;
    live.erase(found);
  }
  enter_steps(static_cast<std::int64_t>(trace.events.size()));
  // A block freed before the next allocation still held its bytes at its own tick.
  for (Block& block : result.blocks) block.death = std::max(block.death, block.birth + 1);
  return result;
}

}  // namespace stalloc
