// The allocator of one device: recorder, matcher and arenas behind one lock.
//
// A caller (the CUDA or CPU allocator, or a replay) does, for each request:
//     if (void* p = engine.try_allocate(size, stream)) return p;       // served from an arena
//     void* p = upstream...; engine.note_upstream_allocation(p, size, stream); return p;
// and for each free:
//     if (Engine* e = ExtentTable::owner(p)) { e->deallocate(p); return; }
//     engine.note_upstream_free(p); upstream free...                   // note first: the address may come back
//
// All methods are thread-safe. No lock is held across a call into the upstream.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "core/plan.h"
#include "core/trace.h"
#include "runtime/stats.h"
#include "runtime/upstream.h"

namespace stalloc {

class Engine {
 public:
  // `upstream` outlives the engine. An engine is never destroyed while memory it served may be freed.
  explicit Engine(Upstream& upstream);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // --- the hot path: never allocates, never throws ---
  void* try_allocate(Bytes size, StreamHandle stream) noexcept;  // nullptr: ask the upstream
  void deallocate(void* ptr) noexcept;                           // a pointer that this engine served
  void note_upstream_allocation(const void* ptr, Bytes size, StreamHandle stream) noexcept;
  void note_upstream_free(const void* ptr) noexcept;
  void record_stream(const void* ptr, StreamHandle stream) noexcept;  // any pointer, served or not
  // A use by another stream that the block's free shall not wait for: only the recording knows of it.
  void note_stream_use(const void* ptr, StreamHandle stream) noexcept;
  // True when the notes above have an effect: lets callers skip the call.
  bool is_recording() const noexcept { return recording_.load(std::memory_order_relaxed); }
  // False when try_allocate returns nullptr whatever it is asked.
  bool is_serving() const noexcept { return serving_.load(std::memory_order_relaxed); }

  // The served block that holds `ptr`; false when there is none.
  bool find_block(const void* ptr, void** base, Bytes* size, StreamHandle* stream) const noexcept;

  // --- control: called at step boundaries, may allocate and throw Error ---
  std::int64_t end_step();  // the boundary between two steps; returns the number of steps ended so far
  // Between two steps a program may do what is no part of them. What it asks for between these two calls (from the step's
  // boundary on, where the first is left out) is left out of the recording, and the step goes on where it was. Where it
  // `is_certain` that this is no step, its batches do not let the plan grow.
  void begin_phase(bool is_certain = false);
  void end_phase();
  void start_recording(std::size_t capacity_events);
  void stop_recording() noexcept;
  Trace recorded() const;           // a copy; the recording goes on
  bool recording_overflowed() const noexcept;

  // Takes the plan's extents from the upstream and serves from them from now on: the next request is the
  // first of the plan's table for `plan_step`. False, with nothing changed, when the upstream has no room.
  // The plan was checked (check_plan) by the caller.
  bool activate(std::shared_ptr<const Plan> plan, std::int64_t plan_step);
  // The same, but each role's extent is taken at the first request of its stream.
  void arm(std::shared_ptr<const Plan> plan, std::int64_t plan_step);
  // The plan that is served. It changes by itself where a step turns out longer than it was made for (variable_bytes):
  // the slots are then placed anew, in more arena, at most `arena_limit` bytes (0: no limit).
  std::shared_ptr<const Plan> plan() const;
  void set_arena_limit(Bytes bytes) noexcept;
  // Forgets the plan. What was served stays valid; free space of the arena goes on serving, see below.
  void deactivate() noexcept;
  // Whether requests without a slot are served from the arena's free space (at first: yes). Off and
  // deactivated is pass-through.
  void set_serve_gaps(bool value) noexcept;
  // Whether streams may hand memory over to each other, where the plan lets them share a space (at first: no). Only for
  // hosts whose use of streams was audited: every use of a block is submitted before its free, to a stream that the engine
  // has seen or that one of these waited for.
  void set_handover(bool value) noexcept;
  // A stream that uses memory, though it may never ask for any of ours: fences are recorded on it too. For good. A stream
  // that asks this engine for memory is followed, served or not.
  void follow_stream(StreamHandle stream) noexcept;
  bool is_active() const noexcept;
  // Gives extents in which nothing lives back to the upstream; bytes returned. While active it keeps the
  // plan's, unless `force`: then they are taken again in a later step.
  Bytes trim(bool force = false) noexcept;
  Bytes trimmable_bytes() const noexcept;  // what trim(true) would give back
  void poll_fences() noexcept;      // lets blocks come back whose streams are done
  // Checks every change and poisons what is freed: slow. Memory of extents that were taken before is not watched.
  void set_debug(bool value) noexcept;
  void become_forked_child() noexcept;  // pass through; frees of served blocks do nothing

  EngineStats stats() const noexcept;
  // The largest value of each of the plan's variables met in a finished step since the plan was taken.
  std::vector<Bytes> variable_bytes() const;
  void reset_peaks() noexcept;
  // The highest of each level since the last call, for whoever adds them to another level; one caller only.
  ServedLevels take_interval_peaks() noexcept;
  Bytes served_bytes() const noexcept { return served_bytes_.load(std::memory_order_relaxed); }
  Bytes extent_bytes() const noexcept { return extent_bytes_.load(std::memory_order_relaxed); }
  // Visits every block of the arenas in address order: for snapshots.
  struct BlockView {
    std::uint64_t address;
    Bytes size;
    Bytes requested;  // 0: free
    StreamHandle stream;
    std::uint64_t extent;
    Bytes extent_size;
    bool awaiting_free;  // freed, waits for a recorded stream
  };
  std::vector<BlockView> blocks() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
  std::atomic<bool> serving_{false};
  std::atomic<bool> recording_{false};
  std::atomic<bool> forked_{false};
  std::atomic<StreamHandle> last_followed_{~StreamHandle{0}};  // spares the lock while one stream asks
  std::atomic<Bytes> served_bytes_{0};
  std::atomic<Bytes> extent_bytes_{0};
};

}  // namespace stalloc
