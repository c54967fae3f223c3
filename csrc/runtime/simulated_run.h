// A history replayed through the real engine over the model of the native allocator: what the torch part does
// around the engine, without torch. Whoever drives it stops at step boundaries and acts on the engine there.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/types.h"
#include "runtime/engine.h"
#include "runtime/simulated_replay.h"
#include "runtime/simulated_trace.h"
#include "runtime/simulated_upstream.h"

namespace stalloc {

class SimulatedRun {
 public:
  SimulatedRun(std::shared_ptr<const ReplayTrace> trace, Bytes limit_bytes, const CachingOptions& options,
               bool handover_audited);
  ~SimulatedRun();

  // Replays up to event `end`, exclusive. False when it stopped before: out of memory, or an unsafe reuse.
  bool advance(std::int64_t end);
  // Closes the last span. Nothing may follow.
  ReplayResult finish();

  Engine& engine() noexcept { return engine_; }
  void set_faults(const SimulatedUpstream::Faults& faults) noexcept { upstream_.set_faults(faults); }
  const std::string& offence() const noexcept { return offence_; }  // empty: no byte was reused unsafely

  const std::string& upstream_offence() const noexcept { return upstream_.offence(); }  // of extents given back since
  void finish_streams() noexcept { upstream_.streams().advance(kNever); }  // all work is done; nothing may follow

  Bytes allocated_bytes() const noexcept;  // as the torch part reports: extents count by what is served
  Bytes reserved_bytes() noexcept { return upstream_.torch().stats().reserved; }
  Bytes pinned_bytes();                    // of segments and pages in which something lives, empty extents not counted
  Bytes stranded_bytes();                  // of these, what is free
  void empty_cache();
  void use_expandable_segments(bool value) noexcept { upstream_.torch().use_expandable_segments(value); }

 private:
  struct Placed {
    void* served = nullptr;
    SimulatedBlock* block = nullptr;  // of the native model, where not served
    FreeTicket ticket = 0;
  };

  bool step(const ReplayEvent& event);
  bool allocate(const ReplayBlock& block, Placed& placed);
  void request_free(const ReplayBlock& block, Placed& placed);
  SimulatedBlock* allocate_upstream(const ReplayBlock& block);
  // Which stream recorded a block, the trace does not tell: another one that the run uses.
  StreamHandle other_stream(StreamHandle stream) const noexcept;

  std::shared_ptr<const ReplayTrace> trace_;
  SimulatedUpstream upstream_;
  Engine engine_;
  std::vector<Placed> placed_;  // by the ordinal of the allocation
  StepMeter meter_;
  std::vector<StreamHandle> streams_;
  std::int64_t next_ = 0;
  std::int64_t died_at_ = -1;
  std::string offence_;
};

}  // namespace stalloc
