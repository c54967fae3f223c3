#include "runtime/simulated_streams.h"

#include <algorithm>

namespace stalloc {

Fence SimulatedStreams::record_fence(StreamHandle stream) {
  const Fence fence = next_fence_++;
  // At the end of a program, when all is done, now_ is kNever. A stream works in order: what it had to do before is done first.
  const std::int64_t done = horizon_ != kNever ? horizon_
                                               : std::max(std::min(now_, kNever - kUsualLatency) + kUsualLatency, busy_until_[stream]);
  fences_[fence] = {stream, now_, done};
  return fence;
}

bool SimulatedStreams::fence_done(Fence fence) const noexcept {
  const auto it = fences_.find(fence);
  return it == fences_.end() || it->second.done <= now_;
}

void SimulatedStreams::wait_on_host(Fence fence) noexcept {
  const auto it = fences_.find(fence);
  if (it == fences_.end()) return;
  // The host stood still until then: whatever ends at that event has ended now.
  it->second.done = std::min(it->second.done, now_);
  for (auto& [address, use] : uses_) {
    if (!use.live && use.freed <= it->second.recorded) use.done = std::min(use.done, now_);
  }
}

void SimulatedStreams::wait_on_stream(StreamHandle waiting, Fence fence) {
  const auto it = fences_.find(fence);
  if (it == fences_.end()) return;
  std::int64_t& until = waited_[{waiting, it->second.stream}];
  until = std::max(until, it->second.recorded);
}

// Whether what `stream` does from now on comes after what `other` had to do at that moment.
bool SimulatedStreams::comes_after(StreamHandle stream, StreamHandle other, std::int64_t moment) const {
  if (other == stream) return true;
  const auto it = waited_.find({stream, other});
  return it != waited_.end() && it->second >= moment;
}

bool SimulatedStreams::handed_over(const Use& use, StreamHandle stream) const {
  return handover_audited_ && std::all_of(known_streams_.begin(), known_streams_.end(), [&](StreamHandle other) {
    return comes_after(stream, other, use.freed);
  });
}

std::string SimulatedStreams::offence(std::uint64_t address, const Use& use, StreamHandle stream) const {
  const auto tell = [&](const char* what, const char* rule) {
    return std::string("replay stopped at an unsafe reuse: event=") + std::to_string(now_) + ", address=" +
           std::to_string(address) + ", " + what + ": " + rule + ".";
  };
  if (use.live) return tell("the bytes are live", "two live blocks never share a byte");
  if (use.done > now_ && (use.recorded == use.stream || !comes_after(stream, use.recorded, use.freed))) {
    return tell("a recorded stream may still use the bytes", "a block comes back when its recorded streams are done");
  }
  if (use.stream != stream && !handed_over(use, stream)) {
    return tell("the bytes were used on another stream",
                "a range stays with its stream unless the host was audited and the new stream waited for all");
  }
  return {};
}

void SimulatedStreams::split_at(std::uint64_t address) {
  auto it = uses_.upper_bound(address);
  if (it == uses_.begin()) return;
  --it;
  if (it->first == address || it->second.end <= address) return;
  Use rest = it->second;
  it->second.end = address;
  uses_.emplace_hint(std::next(it), address, rest);
}

SimulatedStreams::Uses::iterator SimulatedStreams::isolate(std::uint64_t begin, std::uint64_t end) {
  split_at(begin);
  split_at(end);
  return uses_.lower_bound(begin);
}

void SimulatedStreams::know(StreamHandle stream) {
  if (std::find(known_streams_.begin(), known_streams_.end(), stream) == known_streams_.end()) {
    known_streams_.push_back(stream);
  }
}

void SimulatedStreams::adopt(std::uint64_t address, Bytes size, StreamHandle stream) {
  const std::uint64_t end = address + static_cast<std::uint64_t>(size);
  auto it = isolate(address, end);
  while (it != uses_.end() && it->first < end) it = uses_.erase(it);
  uses_.emplace_hint(it, address, Use{end, stream, false, now_, now_, stream});
}

std::string SimulatedStreams::claim(std::uint64_t address, Bytes size, StreamHandle stream) {
  know(stream);
  std::string found = forget(address, size, stream);
  if (found.empty()) uses_.emplace(address, Use{address + static_cast<std::uint64_t>(size), stream, true, 0, 0, stream});
  return found;
}

void SimulatedStreams::release(std::uint64_t address, std::int64_t done, StreamHandle recorded) {
  const auto it = uses_.find(address);
  if (it == uses_.end()) return;
  it->second.live = false;
  it->second.freed = now_;
  it->second.done = done == kNever ? now_ : done;
  it->second.recorded = recorded;
  std::int64_t& until = busy_until_[recorded];
  until = std::max(until, it->second.done);
}

std::string SimulatedStreams::forget(std::uint64_t address, Bytes size, StreamHandle stream) {
  const std::uint64_t end = address + static_cast<std::uint64_t>(size);
  auto it = isolate(address, end);
  while (it != uses_.end() && it->first < end) {
    std::string found = offence(it->first, it->second, stream);
    if (!found.empty()) return found;
    it = uses_.erase(it);
  }
  return {};
}

}  // namespace stalloc
