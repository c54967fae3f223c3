// The engine's control: steps, recording, plans, extents. Called rarely; may allocate.
#include <algorithm>
#include <utility>

#include "core/handover.h"
#include "core/residents.h"
#include "core/twins.h"
#include "runtime/engine_impl.h"

namespace stalloc {
namespace {

// An extent is longer than its share of the plan, so that a later plan, whose slots may not lie across its end, finds all of
// that share usable.
Bytes extent_bytes_for(Bytes size) noexcept {
  return size < kExtentGranule ? size + kAlignment : round_up(size + kAlignment, kExtentGranule);
}

}  // namespace

Engine::Engine(Upstream& upstream) : impl_(std::make_unique<Impl>(*this, upstream)) {
  impl_->extents.reserve(ExtentTable::kMaxExtents);
}

Engine::~Engine() {
  for (Arena::Extent* extent : impl_->extents) {
    void* base = reinterpret_cast<void*>(extent->base);
    ExtentTable::withdraw(base);
    impl_->upstream.deallocate(base);
  }
}

Engine::Impl::Script::Script(std::shared_ptr<const Plan> the_plan) : plan(std::move(the_plan)), gaps(*plan) {
  steps.reserve(static_cast<std::size_t>(plan->num_tables()));
  for (std::int32_t table = 0; table < plan->num_tables(); ++table) steps.emplace_back(*plan, table);
  const std::vector<bool> hands_over = find_handovers(*plan);
  served.reserve(plan->table_slots.size());
  for (const std::int32_t index : plan->table_slots) {
    const Slot& slot = plan->slots[static_cast<std::size_t>(index)];
    const auto size_granules = static_cast<std::uint32_t>(std::min(slot.size, kMaxRequest) / kAlignment);
    served.push_back({slot.offset, slot.birth, slot.death, size_granules, slot.kind != SlotKind::kUnplanned,
                      hands_over[static_cast<std::size_t>(index)]});
  }
  twins = find_twins(*plan);
  resident_extents = stalloc::resident_extents(*plan, find_residents(*plan));
  for (const Slot& slot : plan->slots) {
    if (slot.kind == SlotKind::kPersistent) persistent_bytes += slot.size;
    varies |= slot.kind == SlotKind::kRoom;
  }
  // Where steps differ, more comes than was kept room for now and then, long before the largest slots are needed.
  least_displacing = varies ? std::max(kSmallBytes, plan->total_arena_bytes() / 32) : kSmallBytes;
}

std::int64_t Engine::end_step() {
  Impl::Lock lock(impl_->mutex);
  impl_->recorder.end_step();
  impl_->note_variables();
  ++impl_->plan_step;
  impl_->is_between_steps = false;
  impl_->begin_table();
  if (!impl_->awaiting.empty()) impl_->poll_some(lock, impl_->awaiting.size());
  return ++impl_->stats.steps;
}

void Engine::begin_phase(bool is_certain) {
  const Impl::Lock lock(impl_->mutex);
  impl_->is_between_steps |= is_certain;
  impl_->recorder.mark();
  if (impl_->script != nullptr) impl_->cursor_before_phase = impl_->cursor;
}

void Engine::end_phase() {
  const Impl::Lock lock(impl_->mutex);
  impl_->recorder.forget_passing();
  impl_->is_between_steps = false;
  if (impl_->script == nullptr) return;
  if (!impl_->cursor_before_phase) {
    impl_->begin_table();
    return;
  }
  impl_->cursor = *impl_->cursor_before_phase;
  impl_->cursor.adopt_layout(impl_->script->steps.front());  // the phase may have had a longer batch
}

void Engine::Impl::begin_table() noexcept {
  cursor_before_phase.reset();
  num_layouts = 0;
  if (script != nullptr) {
    const auto step = [this](std::int64_t index) { return &script->steps[static_cast<std::size_t>(script->plan->table_of(index))]; };
    cursor.begin(step(plan_step), step(plan_step + 1));
  }
  find_table();
}

void Engine::Impl::find_table() noexcept {
  if (script == nullptr) return;
  const Plan& plan = *script->plan;
  const auto begin_of = [&](std::int64_t step) {
    return plan.table_begin.data() + static_cast<std::ptrdiff_t>(plan.table_of(step)) * plan.num_roles;
  };
  table_begin = begin_of(plan_step);
  next_table_begin = begin_of(plan_step + 1);
}

void Engine::Impl::note_variables() noexcept {
  if (script == nullptr) return;
  for (std::size_t i = 0; i < std::min(cursor.num_variables(), variable_bytes.size()); ++i) {
    variable_bytes[i] = std::max(variable_bytes[i], cursor.trusted_value(i));
    has_outgrown |= variable_bytes[i] > script->steps.front().tolerated_bytes()[i];
  }
}

std::vector<Bytes> Engine::variable_bytes() const {
  const Impl::Lock lock(impl_->mutex);
  return impl_->variable_bytes;
}

// --- recording ---

void Engine::start_recording(std::size_t capacity_events) {
  const Impl::Lock lock(impl_->mutex);
  impl_->recorder.start(capacity_events);
  recording_.store(!forked_.load());
}

void Engine::stop_recording() noexcept {
  const Impl::Lock lock(impl_->mutex);
  impl_->recorder.clear();
  recording_.store(false);
}

Trace Engine::recorded() const {
  const Impl::Lock lock(impl_->mutex);
  return impl_->recorder.trace(impl_->roles.count());
}

bool Engine::recording_overflowed() const noexcept {
  const Impl::Lock lock(impl_->mutex);
  return impl_->recorder.overflowed();
}

// --- plans ---

bool Engine::activate(std::shared_ptr<const Plan> plan, std::int64_t plan_step) {
  auto script = std::make_unique<const Impl::Script>(plan);
  Impl::TakenExtents taken(*impl_);
  for (RoleIndex role = 0; role < plan->num_roles; ++role) {
    if (plan->arena_bytes[static_cast<std::size_t>(role)] == 0) continue;
    StreamHandle stream = 0;
    {
      const Impl::Lock lock(impl_->mutex);
      if (role >= impl_->roles.count()) continue;  // taken when its stream appears
      impl_->arenas[static_cast<std::size_t>(role)].make_room();
      stream = impl_->roles.handle_of(role);
    }
    auto extent = impl_->make_extent(*plan, role, plan->arena_bytes[static_cast<std::size_t>(role)], stream);
    if (extent == nullptr) return false;
    taken.extents.push_back(std::move(extent));
  }
  const Impl::Lock lock(impl_->mutex);
  impl_->make_room(*script);
  impl_->install(std::move(script), plan_step);
  taken.adopt_all();
  return true;
}

std::shared_ptr<const Plan> Engine::plan() const {
  const Impl::Lock lock(impl_->mutex);
  return impl_->script == nullptr ? nullptr : impl_->script->plan;
}

void Engine::set_arena_limit(Bytes bytes) noexcept {
  const Impl::Lock lock(impl_->mutex);
  impl_->arena_limit = bytes;
}

void Engine::arm(std::shared_ptr<const Plan> plan, std::int64_t plan_step) {
  auto script = std::make_unique<const Impl::Script>(std::move(plan));
  const Impl::Lock lock(impl_->mutex);
  impl_->make_room(*script);
  impl_->install(std::move(script), plan_step);
}

// For `next`, so that neither serving it nor giving it up allocates.
void Engine::Impl::make_room(const Script& next) {
  for (const StepScript& table : next.steps) cursor.make_room(table);
  variable_bytes.reserve(next.plan->variable_bytes.size());
  old_scripts.reserve(old_scripts.size() + 2);  // this one and the one before it
}

void Engine::Impl::install(std::unique_ptr<const Script> next, std::int64_t step) noexcept {
  for (Arena& arena : arenas) arena.forget_plan();
  variable_bytes.assign(next->plan->variable_bytes.size(), 0);
  replace_script(std::move(next));
  plan_step = step;
  extent_from_step.fill(step);
  layout_from_step = step;
  has_outgrown = false;
  begin_table();
  refresh_serving();
}

void Engine::Impl::replace_script(std::unique_ptr<const Script> next) noexcept {
  if (script != nullptr) old_scripts.push_back(std::move(script));
  script = std::move(next);
  find_table();
}

void Engine::deactivate() noexcept {
  const Impl::Lock lock(impl_->mutex);
  if (impl_->script != nullptr) impl_->old_scripts.push_back(std::move(impl_->script));
  impl_->script = nullptr;
  for (Arena& arena : impl_->arenas) arena.forget_plan();
  impl_->refresh_serving();
}

void Engine::set_serve_gaps(bool value) noexcept {
  const Impl::Lock lock(impl_->mutex);
  impl_->serve_gaps = value;
  impl_->refresh_serving();
}

bool Engine::is_active() const noexcept {
  const Impl::Lock lock(impl_->mutex);
  return impl_->script != nullptr;
}

void Engine::Impl::refresh_serving() noexcept {
  const bool serving = script != nullptr || (serve_gaps && !extents.empty());
  engine.serving_.store(serving && !engine.forked_.load());
}

// --- extents ---

// Called by the first request that misses what the plan has for its role beyond the extents there are. Others fall back
// meanwhile.
void Engine::Impl::take_extent(Lock& lock, RoleIndex role) noexcept {
  const auto index = static_cast<std::size_t>(role);
  extent_from_step[index] = plan_step + 1;
  const Script* asked_by = script.get();
  const Bytes present = arenas[index].planned_bytes();
  const Bytes missing = asked_by->plan->arena_bytes[index] - present;
  const Bytes resident = present == 0 ? asked_by->resident_extents[index] : 0;
  const StreamHandle stream = roles.handle_of(role);
  std::unique_ptr<Arena::Extent> below;  // of the residents, where they have one
  std::unique_ptr<Arena::Extent> extent;
  try {
    arenas[index].make_room();
    lock.unlock();
    if (resident > 0) below = make_extent(*asked_by->plan, role, resident - kAlignment, stream);
    if (resident == 0 || below != nullptr) extent = make_extent(*asked_by->plan, role, missing - resident, stream);
  } catch (const std::exception&) {
    // No host memory for the bookkeeping: the requests fall back, counted as no_extent.
  }
  if (!lock.owns_lock()) lock.lock();
  if (extent != nullptr && script.get() == asked_by && arenas[index].planned_bytes() == present) {
    if (below != nullptr) adopt(std::move(below));
    adopt(std::move(extent));
    return;
  }
  if (below == nullptr && extent == nullptr) return;
  lock.unlock();
  if (below != nullptr) give_back(std::move(below));
  if (extent != nullptr) give_back(std::move(extent));
  lock.lock();
}

// Takes memory from the upstream; no lock is held. Null when there is no room.
std::unique_ptr<Arena::Extent> Engine::Impl::make_extent(const Plan& plan, RoleIndex role, Bytes size,
                                                         StreamHandle stream) {
  constexpr std::size_t kSpareBlocks = 16384;  // for requests beside the plan
  size = extent_bytes_for(size);
  auto extent = std::make_unique<Arena::Extent>(role, 0, size, kSpareBlocks + 2 * plan.most_alive(role));
  if (plan.is_shared(role)) extent->owners = std::make_unique<LastFrees>(size, plan.num_roles);
  void* base = upstream.allocate(size, stream);
  if (base == nullptr) return nullptr;
  extent->base = reinterpret_cast<std::uint64_t>(base);
  if (!ExtentTable::publish(&engine, base, size)) {
    upstream.deallocate(base);
    return nullptr;
  }
  return extent;
}

void Engine::Impl::adopt(std::unique_ptr<Arena::Extent> extent) noexcept {
  if (debug) debug_memory.extent_taken(*extent, roles.handle_of(extent->role));
  extents.push_back(extent.get());
  if (extent->owners != nullptr) {  // what the native pool gave was used on its stream before
    extent->owners->note(0, extent->map.size(), extent->role, epoch);
    row_wanted = true;
  }
  stats.extent_bytes += extent->map.size();
  engine.extent_bytes_.store(stats.extent_bytes, std::memory_order_relaxed);
  arenas[static_cast<std::size_t>(extent->role)].add_plan_extent(std::move(extent));
  refresh_serving();
}

void Engine::Impl::give_back(std::unique_ptr<Arena::Extent> extent) noexcept {
  void* base = reinterpret_cast<void*>(extent->base);
  ExtentTable::withdraw(base);
  upstream.deallocate(base);
}

Bytes Engine::trim(bool force) noexcept {
  if (forked_.load(std::memory_order_relaxed)) return 0;
  poll_fences();
  std::vector<std::unique_ptr<Arena::Extent>> taken;
  try {
    taken.reserve(ExtentTable::kMaxExtents);
  } catch (const std::bad_alloc&) {
    return 0;
  }
  Bytes bytes = 0;
  {
    Impl::Lock lock(impl_->mutex);
    const bool keep_plan = impl_->script != nullptr && !force;
    impl_->settle_empty_extents(lock);
    for (Arena& arena : impl_->arenas) arena.take_empty_extents(keep_plan, taken);
    for (const auto& extent : taken) {
      impl_->extents.erase(std::find(impl_->extents.begin(), impl_->extents.end(), extent.get()));
      impl_->extent_from_step[static_cast<std::size_t>(extent->role)] = impl_->plan_step + 1;
      bytes += extent->map.size();
    }
    impl_->stats.extent_bytes -= bytes;
    extent_bytes_.store(impl_->stats.extent_bytes, std::memory_order_relaxed);
    impl_->refresh_serving();
    if (impl_->debug) impl_->check();
  }
  for (auto& extent : taken) impl_->give_back(std::move(extent));
  return bytes;
}

Bytes Engine::trimmable_bytes() const noexcept {
  const Impl::Lock lock(impl_->mutex);
  Bytes bytes = 0;
  for (const Arena& arena : impl_->arenas) bytes += arena.empty_extent_bytes(false);
  return bytes;
}

void Engine::poll_fences() noexcept {
  if (forked_.load(std::memory_order_relaxed)) return;
  Impl::Lock lock(impl_->mutex);
  if (!impl_->awaiting.empty()) impl_->poll_some(lock, impl_->awaiting.size());
}

void Engine::set_debug(bool value) noexcept {
  const Impl::Lock lock(impl_->mutex);
  impl_->debug = value;
  // What is freed unseen holds no poison.
  for (Arena::Extent* extent : impl_->extents) extent->poisoned = false;
}

// The parent's lock may be held by a thread that does not exist here: from now on no lock is taken on the
// paths that a child runs.
void Engine::become_forked_child() noexcept {
  forked_.store(true);
  serving_.store(false);
  recording_.store(false);
}

// --- figures ---

EngineStats Engine::stats() const noexcept {
  const Impl::Lock lock(impl_->mutex);
  EngineStats stats = impl_->stats;
  stats.served_bytes = impl_->levels[0].bytes;
  stats.served_blocks = impl_->levels[0].blocks;
  return stats;
}

void Engine::reset_peaks() noexcept {
  const Impl::Lock lock(impl_->mutex);
  impl_->stats.served_peak_bytes = impl_->levels[0].bytes;
}

ServedLevels Engine::take_interval_peaks() noexcept {
  const Impl::Lock lock(impl_->mutex);
  return std::exchange(impl_->interval_peaks, impl_->levels);
}

std::vector<Engine::BlockView> Engine::blocks() const {
  const Impl::Lock lock(impl_->mutex);
  std::vector<BlockView> views;
  for (Arena::Extent* extent : impl_->extents)
    for (auto at = extent->map.first(); at != BlockMap::kNoBlock; at = extent->map.next(at)) {
      const Arena::Place place{extent, at};
      const bool used = extent->map.block(at).used;
      views.push_back({place.address(), place.size(), used ? place.note().requested : 0,
                       impl_->roles.handle_of(used ? place.note().role : extent->role), extent->base, extent->map.size(),
                       used && place.note().freed});
    }
  return views;
}

}  // namespace stalloc
