// The engine's insides, shared by its two source files: engine.cpp (hot path) and engine_control.cpp.
#pragma once

#include <array>
#include <deque>
#include <mutex>
#include <optional>

#include "core/gap_finder.h"
#include "core/planner.h"
#include "core/step_cursor.h"
#include "core/twins.h"
#include "runtime/arena.h"
#include "runtime/brief_mutex.h"
#include "runtime/debug_memory.h"
#include "runtime/engine.h"
#include "runtime/extent_table.h"
#include "runtime/fence_rows.h"
#include "runtime/recorder.h"
#include "runtime/stream_roles.h"

namespace stalloc {

struct Standing;

inline constexpr Bytes kSmallBytes = Bytes{1} << 20;  // up to here torch has a pool of its own
inline constexpr Bytes kMaxRequest = Bytes{1} << 40;  // larger ones are not ours

struct Engine::Impl {
  using Lock = std::unique_lock<BriefMutex>;

  // A freed block that waits for one stream.
  struct Awaiting {
    Arena::Place place;
    RoleIndex role = 0;
    Fence fence = 0;  // 0: still to be recorded (a capture was going on)
  };

  using AwaitingOfBlock = std::array<Awaiting, kMaxFencedStreams>;

  // What serving needs of a slot, two to a cache line.
  struct ServedSlot {
    Bytes offset = kUnplaced;
    Tick birth = 0;
    Tick death = 0;
    std::uint32_t size_granules = 0;  // enough for any request that is served
    bool is_planned = false;
    bool hands_over = false;  // find_handovers()
  };

  // A plan made ready for the hot path.
  struct Script {
    std::shared_ptr<const Plan> plan;
    std::vector<StepScript> steps;  // by table
    std::vector<ServedSlot> served;  // as the plan's table_slots: table by table, role by role
    std::vector<std::int32_t> twins;  // of served: find_twins()
    mutable GapFinder gaps;
    Bytes persistent_bytes = 0;
    bool varies = false;            // steps differ in their requests
    std::vector<Bytes> resident_extents;  // resident_extents() of the plan
    Bytes least_displacing = 0;     // a smaller request takes no bytes that slots will need: it would cost more than it is
    explicit Script(std::shared_ptr<const Plan> plan);
  };

  // Extents on their way into the arenas. Those that do not get there, whatever the reason, go back.
  struct TakenExtents {
    explicit TakenExtents(Impl& impl) : impl(impl) { extents.reserve(StreamRoles::kMaxRoles); }
    ~TakenExtents() {
      for (auto& extent : extents)
        if (extent != nullptr) impl.give_back(std::move(extent));
    }
    void adopt_all() noexcept {
      for (auto& extent : extents) impl.adopt(std::move(extent));
    }
    Impl& impl;
    std::vector<std::unique_ptr<Arena::Extent>> extents;
  };

  Impl(Engine& engine, Upstream& upstream) : engine(engine), upstream(upstream), debug_memory(upstream) {}

  // --- engine.cpp ---
  void* allocate(Bytes size, StreamHandle stream) noexcept;
  Arena::Place serve_slot(Lock& lock, RoleIndex role, Bytes size, Fallback* reason) noexcept;
  bool make_ready(Lock& lock, RoleIndex role) noexcept;
  Arena::Place take_twin(Arena& arena, Bytes size) noexcept;
  Arena::Place take_slot(Lock& lock, Arena& arena, Bytes offset, Bytes size, RoleIndex role) noexcept;
  Arena::Place serve_gap(Lock& lock, RoleIndex role, Bytes rounded) noexcept;
  Arena::Place take_idle(const Script& plan, RoleIndex space, Bytes rounded, bool sparing) noexcept;
  void* hand_out(const Arena::Place& place, Bytes requested, RoleIndex role) noexcept;
  void release(const Arena::Place& place) noexcept;
  void await_streams(Lock& lock, const Arena::Place& place) noexcept;
  void put_back(const Awaiting& entry) noexcept;
  void poll_some(Lock& lock, std::size_t limit) noexcept;
  Arena::Place find(const void* ptr) const noexcept;
  Arena::Place find_used(const void* ptr) const noexcept;

  // --- engine_handover.cpp ---
  // Only this stream ever used its memory.
  static bool is_own(const Arena::Place& place, RoleIndex role) noexcept {
    return place.extent->owners == nullptr && place.extent->role == role;
  }
  bool settle(Lock& lock, const Arena::Place& place, RoleIndex role) noexcept;
  Arena::Place settled(Lock& lock, const Arena::Place& place, RoleIndex role) noexcept;
  Arena::Place take_awaited(Lock& lock, Arena& arena, Bytes offset, Bytes size, RoleIndex role) noexcept;
  bool wait_for_uses(Lock& lock, const Arena::Place& place) noexcept;
  bool leave_to_rows(Lock& lock, const Arena::Place& place) noexcept;
  std::size_t take_awaiting(const Arena::Place& place, AwaitingOfBlock& entries) noexcept;
  FenceRow* record_row(Lock& lock) noexcept;
  bool wait_for(Lock& lock, FenceRow& row, RoleIndex role) noexcept;
  std::size_t known_streams(std::array<StreamHandle, kMaxFencedStreams>& streams) const noexcept;
  std::size_t refresh_known_streams() noexcept;
  bool may_go_back(const Arena::Extent& extent) const noexcept;
  void settle_empty_extents(Lock& lock) noexcept;

  // --- engine_control.cpp ---
  void take_extent(Lock& lock, RoleIndex role) noexcept;
  std::unique_ptr<Arena::Extent> make_extent(const Plan& plan, RoleIndex role, Bytes size, StreamHandle stream);
  void adopt(std::unique_ptr<Arena::Extent> extent) noexcept;
  void give_back(std::unique_ptr<Arena::Extent> extent) noexcept;
  void make_room(const Script& next);
  void install(std::unique_ptr<const Script> next, std::int64_t step) noexcept;  // after make_room, as the next one
  void replace_script(std::unique_ptr<const Script> next) noexcept;
  void begin_table() noexcept;
  void find_table() noexcept;
  void note_variables() noexcept;
  void refresh_serving() noexcept;

  // --- engine_layout.cpp ---
  bool wants_layout() const noexcept;
  bool awaits_layout(RoleIndex role) const noexcept;
  void lay_out_anew(Lock& lock) noexcept;
  std::vector<Bytes> needed_variables() const;
  void keep_live(const std::vector<Arena::Extent*>& those, RoleIndex space, Standing& standing) const;
  bool is_quiet() const noexcept;

  // --- engine_check.cpp ---
  void check() const noexcept;  // debug mode: ends the process where an invariant is broken

  Engine& engine;
  Upstream& upstream;

  mutable BriefMutex mutex;  // guards all below; never held across a call into the upstream
  StreamRoles roles;
  Recorder recorder;
  std::array<Arena, StreamRoles::kMaxRoles> arenas;  // by space, which is a role that has it
  std::vector<Arena::Extent*> extents;  // of all arenas
  std::unique_ptr<const Script> script;  // null: no plan
  // Replaced scripts are kept: a thread inside take_extent may still look at one. A few a process.
  std::vector<std::unique_ptr<const Script>> old_scripts;
  std::int64_t plan_step = 0;
  const std::int64_t* table_begin = nullptr;  // the script's plan's, of the table of plan_step: by role
  const std::int64_t* next_table_begin = nullptr;  // of the step after it
  StepCursor cursor;
  // Of this step. Given back by assignment, which keeps the storage that the cursor points into.
  std::optional<StepCursor> cursor_before_phase;
  bool is_between_steps = false;  // what comes now is no step: told, not guessed
  std::vector<Bytes> variable_bytes;  // the largest value of each variable met since the plan was installed
  Bytes arena_limit = 0;
  bool has_outgrown = false;          // a finished step was longer than the plan
  std::int64_t layout_from_step = 0;  // the step from which on slots may be placed anew (again)
  int num_layouts = 0;                // in this step
  // The step from which on a missing plan extent may be asked for (again); one thread at a time.
  std::array<std::int64_t, StreamRoles::kMaxRoles> extent_from_step{};
  // What the request at hand was foretold to need: from its slot, or a guess where it has none.
  Tick now = 0;
  std::size_t entry = 0;  // of the plan's tables, where a slot was foretold
  Tick until = 0;
  bool is_foretold = true;  // else `until` is a guess
  bool serve_gaps = true;
  std::deque<Awaiting> awaiting;
  bool debug = false;
  DebugMemory debug_memory;
  // Handover between streams.
  bool handover = false;   // the host's use of streams was audited
  bool row_wanted = false;  // a block was freed whose bytes go to another stream
  Epoch epoch = 1;         // of the frees that happen now
  FenceRows fence_rows;
  std::array<Epoch, StreamRoles::kMaxRoles> waited{};  // by role: its stream has waited for the row of this epoch
  std::size_t num_known_streams = 0;                   // when these waits were made, and of which roles and followed ones
  RoleIndex counted_roles = 0;
  std::size_t counted_followed = 0;
  std::array<StreamHandle, kMaxFencedStreams> followed{};  // told by the host, whether or not they allocate
  std::size_t num_followed = 0;
  EngineStats stats;      // but for what `levels` holds
  ServedLevels levels{};  // now
  ServedLevels interval_peaks{};
};

}  // namespace stalloc
