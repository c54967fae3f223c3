#include "runtime/simulated_run.h"

#include <algorithm>

namespace stalloc {
namespace {

constexpr StreamHandle kUnseenStream = ~StreamHandle{0};

void* pointer_of(const SimulatedBlock* block) noexcept { return reinterpret_cast<void*>(block->address); }

}  // namespace

SimulatedRun::SimulatedRun(std::shared_ptr<const ReplayTrace> trace, Bytes limit_bytes, const CachingOptions& options,
                           bool handover_audited)
    : trace_(std::move(trace)),
      upstream_(limit_bytes, options, handover_audited),
      engine_(upstream_),
      placed_(trace_->blocks.size()),
      meter_(*trace_) {
  for (const ReplayBlock& block : trace_->blocks) {
    if (streams_.size() > 1) break;
    if (std::find(streams_.begin(), streams_.end(), block.stream) == streams_.end()) streams_.push_back(block.stream);
  }
}

// The engine outlives nothing that it served: what still lives is freed, and all streams end.
SimulatedRun::~SimulatedRun() {
  for (const Placed& placed : placed_) {
    if (placed.served != nullptr) engine_.deallocate(placed.served);
  }
  upstream_.streams().advance(kNever);
  engine_.poll_fences();
}

bool SimulatedRun::advance(std::int64_t end) {
  const SimulatedAllocator& torch = upstream_.torch();
  for (; next_ < std::min(end, trace_->num_events()) && died_at_ < 0 && offence_.empty(); ++next_) {
    while (meter_.at_mark(next_)) meter_.close_span(allocated_bytes(), torch.stats().reserved);
    upstream_.streams().advance(next_);
    if (!step(trace_->events[static_cast<std::size_t>(next_)])) died_at_ = next_;
    if (offence_.empty()) offence_ = upstream_.offence();
    meter_.observe(allocated_bytes(), torch.stats().reserved);
  }
  return died_at_ < 0 && offence_.empty();
}

ReplayResult SimulatedRun::finish() {
  const CachingStats stats = upstream_.torch().stats();
  while (meter_.at_mark(next_)) meter_.close_span(allocated_bytes(), stats.reserved);
  meter_.close_last_span();
  ReplayResult result = meter_.result();
  result.died_at_event = died_at_;
  result.flushes = stats.flushes;
  result.segments_taken = stats.segments_taken;
  return result;
}

Bytes SimulatedRun::allocated_bytes() const noexcept {
  return upstream_.torch().stats().allocated - upstream_.extent_bytes() + engine_.served_bytes();
}

bool SimulatedRun::step(const ReplayEvent& event) {
  if (event.begins_flush) empty_cache();
  if (event.block == ReplayEvent::kNoBlock) return true;
  const ReplayBlock& block = trace_->blocks[static_cast<std::size_t>(event.block)];
  Placed& placed = placed_[static_cast<std::size_t>(event.block)];
  switch (event.action) {
    case TraceAction::kAlloc:
      meter_.add_rounded(rounded_request(block.size));
      return allocate(block, placed);
    case TraceAction::kFreeRequested:
      meter_.add_rounded(-rounded_request(block.size));
      request_free(block, placed);
      return true;
    case TraceAction::kFreeCompleted:
      if (block.freed == kNever) {  // the request fell into a hole of the history
        meter_.add_rounded(-rounded_request(block.size));
        request_free(block, placed);
      }
      if (placed.block != nullptr) upstream_.torch().complete_free(placed.ticket);
      return true;
    default:
      return true;
  }
}

bool SimulatedRun::allocate(const ReplayBlock& block, Placed& placed) {
  upstream_.streams().know(block.stream);
  placed.served = engine_.try_allocate(block.size, block.stream);
  if (placed.served != nullptr) {
    offence_ = upstream_.streams().claim(reinterpret_cast<std::uint64_t>(placed.served), rounded_request(block.size),
                                         block.stream);
    return true;
  }
  placed.block = allocate_upstream(block);
  if (placed.block == nullptr) return false;
  engine_.note_upstream_allocation(pointer_of(placed.block), block.size, block.stream);
  return true;
}

// Before an out-of-memory error goes up, the arena gives back what it can.
SimulatedBlock* SimulatedRun::allocate_upstream(const ReplayBlock& block) {
  SimulatedBlock* found = upstream_.torch().allocate(block.size, block.stream);
  if (found != nullptr || engine_.trim(true) == 0) return found;
  return upstream_.torch().allocate(block.size, block.stream);
}

void SimulatedRun::request_free(const ReplayBlock& block, Placed& placed) {
  void* const ptr = placed.served != nullptr ? placed.served : pointer_of(placed.block);
  const StreamHandle user = block.was_recorded() ? other_stream(block.stream) : block.stream;
  if (user != block.stream) engine_.record_stream(ptr, user);
  if (placed.served == nullptr) {
    engine_.note_upstream_free(ptr);
    placed.ticket = upstream_.torch().request_free(placed.block);
    return;
  }
  // Without a recorded stream nothing is waited for, though the trace tells the end of the free one event later.
  upstream_.streams().release(reinterpret_cast<std::uint64_t>(ptr), block.was_recorded() ? block.done : kNever, user);
  upstream_.streams().set_fence_horizon(block.done);
  engine_.deallocate(ptr);
  upstream_.streams().set_fence_horizon(kNever);
  placed.served = nullptr;
}

StreamHandle SimulatedRun::other_stream(StreamHandle stream) const noexcept {
  for (const StreamHandle other : streams_) {
    if (other != stream) return other;
  }
  return kUnseenStream;
}

Bytes SimulatedRun::pinned_bytes() { return upstream_.torch().pinned().total - engine_.trimmable_bytes(); }

Bytes SimulatedRun::stranded_bytes() {
  const SimulatedAllocator::Pinned pinned = upstream_.torch().pinned();
  return pinned.total - pinned.live;
}

void SimulatedRun::empty_cache() {
  engine_.trim();
  upstream_.torch().empty_cache();
}

}  // namespace stalloc
