// The hot path: serve, free, note. Nothing here allocates, except the queue of blocks that wait for a stream.
#include "runtime/engine.h"

#include <algorithm>

#include "runtime/engine_impl.h"

namespace stalloc {
namespace {

constexpr std::size_t kPollsPerAllocation = 2;
constexpr std::size_t kTwinsTried = 32;
constexpr std::size_t kPollsPerBusySlot = 8;  // each asks the driver: about a microsecond
constexpr Tick kUnforetoldLife = 256;  // taken for how long a request that nothing foretells will live, in ticks

}  // namespace

void* Engine::try_allocate(Bytes size, StreamHandle stream) noexcept {
  if (serving_.load(std::memory_order_relaxed)) return impl_->allocate(size, stream);
  follow_stream(stream);
  return nullptr;
}

void* Engine::Impl::allocate(Bytes size, StreamHandle stream) noexcept {
  if (size <= 0 || size > kMaxRequest) return nullptr;
  const Bytes rounded = round_up(size, kAlignment);
  Lock lock(mutex);
  if (!awaiting.empty()) poll_some(lock, kPollsPerAllocation);
  const RoleIndex role = roles.index_of(stream);
  if (row_wanted && upstream.fences_allowed()) {
    row_wanted = false;
    if (handover) record_row(lock);
  }
  Fallback reason = Fallback::kUnknownStream;
  Arena::Place place;
  if (script != nullptr) {
    ++stats.requests;
    stats.requested_bytes += size;
    if (role >= 0 && role < script->plan->num_roles) place = serve_slot(lock, role, size, &reason);
    if (place) {
      ++stats.slot_hits;
      stats.slot_hit_bytes += size;
      return hand_out(place, size, role);
    }
    ++stats.fallbacks[static_cast<std::size_t>(reason)];
  }
  if (serve_gaps && role >= 0 && !(reason == Fallback::kTooLong && awaits_layout(role))) place = serve_gap(lock, role, rounded);
  if (!place && reason == Fallback::kSlotBusy && script != nullptr && role < script->plan->num_roles)
    place = settled(lock, take_twin(arenas[static_cast<std::size_t>(script->plan->space_of(role))], rounded), role);
  if (!place) return nullptr;
  if (script != nullptr) {
    ++stats.gap_hits;
    stats.gap_hit_bytes += size;
  }
  return hand_out(place, size, role);
}

// Room beside the slots that will be needed while the request is expected to live. Where there is none, a small request
// goes upstream, where it costs little: in a slot's place it would drive out that slot's request, which would drive out
// another. A large one takes any room. Where steps differ, many live longer than foretold, and one of them, however small,
// can keep the largest request from its slot: these slots are spared altogether as long as there is other room.
// What nothing foretells may live for ever too: where steps do not differ, a small one goes upstream at once.
Arena::Place Engine::Impl::serve_gap(Lock& lock, RoleIndex role, Bytes rounded) noexcept {
  const Script* plan = script != nullptr && role < script->plan->num_roles ? script.get() : nullptr;
  const RoleIndex space = plan == nullptr ? role : plan->plan->space_of(role);
  if (plan != nullptr && !is_foretold && !plan->varies && rounded < kSmallBytes) return {};
  Arena& arena = arenas[static_cast<std::size_t>(space)];
  Arena::Place place;
  if (plan != nullptr && plan->varies) place = take_idle(*plan, space, rounded, true);
  if (plan != nullptr && !place) place = take_idle(*plan, space, rounded, false);
  if (!place && (plan == nullptr || rounded >= plan->least_displacing)) place = arena.take_gap(rounded);
  return settled(lock, place, role);
}

Arena::Place Engine::Impl::take_idle(const Script& plan, RoleIndex space, Bytes rounded, bool sparing) noexcept {
  Arena& arena = arenas[static_cast<std::size_t>(space)];
  Bytes begin = 0;  // of the extent in the plan's address space
  for (Arena::Extent* extent : arena.planned()) {
    const Gap gap = plan.gaps.find(extent->map, space, begin, rounded, now, until, sparing);
    if (gap) return arena.take_from(extent, gap.block, gap.offset, rounded);
    begin += extent->map.size();
  }
  return {};
}

// The slot of this request, if its bytes are free; else why not.
Arena::Place Engine::Impl::serve_slot(Lock& lock, RoleIndex role, Bytes size, Fallback* reason) noexcept {
  const std::int64_t position = cursor.match(role, size);
  const Script* const plan = script.get();
  const RoleIndex space = plan->plan->space_of(role);
  Arena& arena = arenas[static_cast<std::size_t>(space)];
  if (has_outgrown || cursor.has_outgrown() || arena.planned_bytes() < plan->plan->arena_bytes[static_cast<std::size_t>(space)])
    if (!make_ready(lock, role)) return {};
  if (position == StepCursor::kNoPosition) {
    until = now + kUnforetoldLife;
    is_foretold = false;
    *reason = Fallback::kUnmatched;
    return {};
  }
  const std::int64_t* const begin = cursor.is_ahead(role) ? next_table_begin : table_begin;
  entry = static_cast<std::size_t>(begin[role] + position);
  const ServedSlot slot = script->served[entry];
  now = slot.birth;
  until = slot.death;
  is_foretold = true;
  if (!slot.is_planned) {
    *reason = Fallback::kUnplanned;
    return {};
  }
  const Bytes rounded = round_up(size, kAlignment);
  if (rounded > slot.size_granules * kAlignment) {
    *reason = Fallback::kTooLong;
    return {};
  }
  ++stats.planned_requests;
  Arena::Place place = take_slot(lock, arena, slot.offset, rounded, role);
  if (!place && script.get() == plan && rounded < kSmallBytes) place = take_twin(arena, rounded);
  if (place) {
    if (!is_own(place, role)) place = settled(lock, place, role);
    if (place) place.note().hands_over = slot.hands_over;
    else *reason = Fallback::kUnfenced;
    return place;
  }
  if (arena.planned().empty()) *reason = Fallback::kNoExtent;
  else *reason = arena.planned().front()->map.has_spare_blocks() ? Fallback::kSlotBusy : Fallback::kTableFull;
  return {};
}

// Places the slots anew or takes an extent, where that is due. False when the lock was open and the plan has changed.
bool Engine::Impl::make_ready(Lock& lock, RoleIndex role) noexcept {
  const RoleIndex space = script->plan->space_of(role);
  const auto index = static_cast<std::size_t>(space);
  const std::int64_t step = plan_step;
  if (wants_layout()) lay_out_anew(lock);
  if (script != nullptr && plan_step >= extent_from_step[index] && role < script->plan->num_roles &&
      arenas[index].planned_bytes() < script->plan->arena_bytes[index]) {
    take_extent(lock, space);
  }
  return script != nullptr && role < script->plan->num_roles && script->plan->space_of(role) == space && plan_step == step;
}

// Of the slots to come that are like the one that is in use, the first that is free: the run makes a pass of a loop once more,
// and may leave out a later one. A large request does so only where there is no other room, since the slot's bytes may be needed
// before its own time.
Arena::Place Engine::Impl::take_twin(Arena& arena, Bytes size) noexcept {
  std::size_t twin = entry;
  for (std::size_t tries = 0; tries < kTwinsTried && twin < script->twins.size() && script->twins[twin] != kNoTwin; ++tries) {
    twin = static_cast<std::size_t>(script->twins[twin]);
    if (const Arena::Place place = arena.take_slot(script->served[twin].offset, size)) return place;
  }
  return {};
}

// The slot's bytes, after a look at those who wait for a stream where they are in use.
Arena::Place Engine::Impl::take_slot(Lock& lock, Arena& arena, Bytes offset, Bytes size, RoleIndex role) noexcept {
  Arena::Place place = arena.take_slot(offset, size);
  if (place || awaiting.empty() || arena.planned().empty()) return place;
  const std::int64_t step = plan_step;
  poll_some(lock, kPollsPerBusySlot);
  if (plan_step == step) place = arena.take_slot(offset, size);
  if (!place && plan_step == step) place = take_awaited(lock, arena, offset, size, role);
  return place;
}

void* Engine::Impl::hand_out(const Arena::Place& place, Bytes requested, RoleIndex role) noexcept {
  Arena::Note& note = place.note();
  note.requested = requested;
  note.role = role;
  if (debug) debug_memory.handed_out(place, roles.handle_of(role));
  const Bytes bytes = place.size();
  const std::size_t size_class = bytes > kSmallBytes ? 1 : 0;
  for (const std::size_t pool : {std::size_t{0}, size_class + 1}) {
    interval_peaks[pool].bytes = std::max(interval_peaks[pool].bytes, levels[pool].bytes += bytes);
    interval_peaks[pool].blocks = std::max(interval_peaks[pool].blocks, ++levels[pool].blocks);
  }
  stats.served_peak_bytes = std::max(stats.served_peak_bytes, levels[0].bytes);
  stats.served_requested_bytes += requested;
  ++stats.total_blocks[size_class];
  stats.total_bytes[size_class] += bytes;
  stats.total_requested_bytes[size_class] += requested;
  engine.served_bytes_.store(levels[0].bytes, std::memory_order_relaxed);
  void* ptr = reinterpret_cast<void*>(place.address());
  recorder.allocation(ptr, requested, role);
  if (debug) check();
  return ptr;
}

void Engine::deallocate(void* ptr) noexcept {
  if (forked_.load(std::memory_order_relaxed)) return;
  Impl::Lock lock(impl_->mutex);
  const Arena::Place place = impl_->find_used(ptr);
  if (!place || place.note().freed) {
    ++impl_->stats.bad_frees;
    if (impl_->debug) DebugMemory::fail_at("a free of no block", reinterpret_cast<std::uint64_t>(ptr), "a live block is freed once");
    return;
  }
  impl_->recorder.free(ptr);
  const Bytes bytes = place.size();
  impl_->stats.served_requested_bytes -= place.note().requested;
  for (const std::size_t pool : {std::size_t{0}, bytes > kSmallBytes ? std::size_t{2} : std::size_t{1}}) {
    impl_->levels[pool].bytes -= bytes;
    --impl_->levels[pool].blocks;
  }
  served_bytes_.store(impl_->levels[0].bytes, std::memory_order_relaxed);
  if (place.note().has_uses || place.note().lost) {
    impl_->await_streams(lock, place);
  } else {
    impl_->release(place);
  }
  if (impl_->debug) impl_->check();
}

void Engine::Impl::release(const Arena::Place& place) noexcept {
  if (debug) debug_memory.coming_back(place, roles.handle_of(place.note().role));
  if (place.extent->owners != nullptr) {
    // What poisons it comes now, after the free.
    const Epoch freed_at = place.note().freed && !debug ? place.note().freed_at : epoch;
    place.extent->owners->note(place.extent->map.offset_of(place.block), place.size(), place.note().role, freed_at);
    row_wanted |= place.note().hands_over;
  }
  place.note() = Arena::Note{};
  place.extent->map.release(place.block);
}

// The block's bytes come back when every stream that used it has passed this moment. One that a stream without a number
// used never does.
void Engine::Impl::await_streams(Lock& lock, const Arena::Place& place) noexcept {
  Arena::Note& note = place.note();
  note.freed = true;
  note.freed_at = epoch;
  row_wanted |= note.hands_over;
  stats.awaiting_bytes += place.size();
  if (note.lost) return;
  note.fences = static_cast<std::int32_t>(note.uses.count());
  const Arena::RoleSet uses = note.uses;
  for (std::size_t role = 0; role < uses.size(); ++role) {
    if (!uses.test(role)) continue;
    const StreamHandle stream = roles.handle_of(static_cast<RoleIndex>(role));
    lock.unlock();
    const Fence fence = upstream.fences_allowed() ? upstream.record_fence(stream) : Fence{0};
    lock.lock();
    put_back({place, static_cast<RoleIndex>(role), fence});
  }
}

// A block that cannot be queued is never given out again: memory lost is better than shared.
void Engine::Impl::put_back(const Awaiting& entry) noexcept {
  try {
    awaiting.push_back(entry);
  } catch (const std::bad_alloc&) {
    entry.place.note().lost = true;
  }
}

// Asks about the oldest `limit` waiting blocks; those that still wait go to the back of the queue.
void Engine::Impl::poll_some(Lock& lock, std::size_t limit) noexcept {
  if (!upstream.fences_allowed()) return;
  for (std::size_t i = 0; i < limit && !awaiting.empty(); ++i) {
    Awaiting entry = awaiting.front();
    awaiting.pop_front();
    const StreamHandle stream = roles.handle_of(entry.role);
    lock.unlock();
    if (entry.fence == 0) entry.fence = upstream.record_fence(stream);
    const bool done = entry.fence != 0 && upstream.fence_done(entry.fence);
    if (done) upstream.release_fence(entry.fence);
    lock.lock();
    if (!done) {
      put_back(entry);
    } else if (--entry.place.note().fences == 0 && !entry.place.note().lost) {
      stats.awaiting_bytes -= entry.place.size();
      release(entry.place);
    }
  }
}

// The block in use that begins there.
Arena::Place Engine::Impl::find_used(const void* ptr) const noexcept {
  const auto address = reinterpret_cast<std::uint64_t>(ptr);
  for (Arena::Extent* extent : extents) {
    if (address - extent->base >= static_cast<std::uint64_t>(extent->map.size())) continue;
    const auto block = extent->map.find_used(static_cast<Bytes>(address - extent->base));
    return block == BlockMap::kNoBlock ? Arena::Place{} : Arena::Place{extent, block};
  }
  return {};
}

Arena::Place Engine::Impl::find(const void* ptr) const noexcept {
  const auto address = reinterpret_cast<std::uint64_t>(ptr);
  for (Arena::Extent* extent : extents)
    if (address - extent->base < static_cast<std::uint64_t>(extent->map.size()))
      return {extent, extent->map.find(static_cast<Bytes>(address - extent->base))};
  return {};
}

void Engine::note_upstream_allocation(const void* ptr, Bytes size, StreamHandle stream) noexcept {
  if (!is_recording() || ptr == nullptr || size <= 0) return;
  const Impl::Lock lock(impl_->mutex);
  const RoleIndex role = impl_->roles.index_of(stream);
  if (role >= 0) impl_->recorder.allocation(ptr, size, role);
}

void Engine::note_upstream_free(const void* ptr) noexcept {
  if (!is_recording() || ptr == nullptr) return;
  const Impl::Lock lock(impl_->mutex);
  impl_->recorder.free(ptr);
}

void Engine::note_stream_use(const void* ptr, StreamHandle stream) noexcept {
  if (!is_recording() || ptr == nullptr) return;
  const Impl::Lock lock(impl_->mutex);
  const RoleIndex role = impl_->roles.index_of(stream);
  if (role >= 0) impl_->recorder.stream_use(ptr, role);
}

void Engine::record_stream(const void* ptr, StreamHandle stream) noexcept {
  if (forked_.load(std::memory_order_relaxed)) return;
  const Impl::Lock lock(impl_->mutex);
  const RoleIndex role = impl_->roles.index_of(stream);
  if (role >= 0) impl_->recorder.stream_use(ptr, role);
  const Arena::Place place = impl_->find(ptr);
  if (!place || role == place.note().role) return;
  if (role < 0) {
    place.note().lost = true;
    return;
  }
  place.note().uses.set(static_cast<std::size_t>(role));
  place.note().has_uses = true;
}

bool Engine::find_block(const void* ptr, void** base, Bytes* size, StreamHandle* stream) const noexcept {
  const Impl::Lock lock(impl_->mutex);
  const Arena::Place place = impl_->find(ptr);
  if (!place || !place.extent->map.block(place.block).used) return false;
  *base = reinterpret_cast<void*>(place.address());
  *size = place.size();
  *stream = impl_->roles.handle_of(place.note().role);
  return true;
}

}  // namespace stalloc
