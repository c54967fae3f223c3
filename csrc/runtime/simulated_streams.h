// Whose work may still touch which bytes: a happens-before model of streams, which knows what a trace tells.
//
// A trace does not tell when work on a stream ends, nor which streams read a block. So bytes are safe to use
// again on the stream they were used on, and, where the block was recorded on another, once the trace saw its
// free complete or the new stream waits, on the device, for what the recorded one had to do at the free. Another stream may have them only if the host's code was audited and that stream waits, on
// the device, for fences that all streams recorded at the free or later. All else is an error of the replay.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/types.h"
#include "runtime/upstream.h"

namespace stalloc {

class SimulatedStreams {
 public:
  explicit SimulatedStreams(bool handover_audited = false) noexcept : handover_audited_(handover_audited) {}

  // Time is the index of the event that is being replayed.
  void advance(std::int64_t now) noexcept { now_ = now; }
  std::int64_t now() const noexcept { return now_; }

  // Fences recorded from now on are done at event `done`; kNever: when the usual latency has passed.
  void set_fence_horizon(std::int64_t done) noexcept { horizon_ = done; }
  Fence record_fence(StreamHandle stream);
  bool fence_done(Fence fence) const noexcept;
  void wait_on_host(Fence fence) noexcept;
  void wait_on_stream(StreamHandle waiting, Fence fence);
  void release_fence(Fence fence) noexcept { fences_.erase(fence); }

  // A stream that the run uses, wherever its memory comes from.
  void know(StreamHandle stream);
  // A range that comes out of the native pool of `stream`, which used it before.
  void adopt(std::uint64_t address, Bytes size, StreamHandle stream);
  // Bytes handed out for use on `stream`. Empty when safe; else a sentence that tells the offence.
  std::string claim(std::uint64_t address, Bytes size, StreamHandle stream);
  // The free of a claimed block was requested; `done` as in ReplayBlock. `recorded`: the stream that record_stream named,
  // the block's own where there is none.
  void release(std::uint64_t address, std::int64_t done, StreamHandle recorded);
  // The range goes back into the native pool of `stream`: nothing in it may be live, or in use by others.
  std::string forget(std::uint64_t address, Bytes size, StreamHandle stream);

 private:
  static constexpr std::int64_t kUsualLatency = 1000;  // events; the traces show up to 2,842

  struct Use {
    std::uint64_t end = 0;
    StreamHandle stream = 0;
    bool live = false;
    std::int64_t freed = 0;
    std::int64_t done = 0;
    StreamHandle recorded = 0;
  };
  struct FenceState {
    StreamHandle stream = 0;
    std::int64_t recorded = 0;
    std::int64_t done = 0;
  };

  using Uses = std::map<std::uint64_t, Use>;  // by first address; disjoint

  std::string offence(std::uint64_t address, const Use& use, StreamHandle stream) const;
  bool handed_over(const Use& use, StreamHandle stream) const;
  bool comes_after(StreamHandle stream, StreamHandle other, std::int64_t moment) const;
  // Cuts ranges at the ends of [begin, end) and returns the first inside.
  Uses::iterator isolate(std::uint64_t begin, std::uint64_t end);
  void split_at(std::uint64_t address);

  bool handover_audited_;
  std::int64_t now_ = 0;
  std::int64_t horizon_ = kNever;
  std::map<StreamHandle, std::int64_t> busy_until_;  // when the uses released so far are done on the stream
  Fence next_fence_ = 1;
  std::unordered_map<Fence, FenceState> fences_;
  std::vector<StreamHandle> known_streams_;
  // waited_[{waiting, awaited}]: work of `awaited` up to this event is over before later work of `waiting`.
  std::map<std::pair<StreamHandle, StreamHandle>, std::int64_t> waited_;
  Uses uses_;
};

}  // namespace stalloc
