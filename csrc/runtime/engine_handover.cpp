// Handover of memory between streams. Safe whatever the plan says: bytes that another stream used last are given out only
// when the new stream has been made to wait, on the device, for fences that all known streams recorded at the free or later.
#include <algorithm>
#include <limits>

#include "core/handover.h"
#include "runtime/engine_impl.h"

namespace stalloc {
namespace {

// Below it, a request for bytes whose fences were not recorded in time is not worth stopping a stream for.
constexpr Bytes kLeastLateRow = kLeastHandover;

}  // namespace

void Engine::set_handover(bool value) noexcept {
  const Impl::Lock lock(impl_->mutex);
  impl_->handover = value;
}

void Engine::follow_stream(StreamHandle stream) noexcept {
  if (stream == last_followed_.load(std::memory_order_acquire) || forked_.load(std::memory_order_relaxed)) return;
  const Impl::Lock lock(impl_->mutex);
  const auto end = impl_->followed.begin() + static_cast<std::ptrdiff_t>(impl_->num_followed);
  if (std::find(impl_->followed.begin(), end, stream) == end && impl_->num_followed < kMaxFencedStreams)
    impl_->followed[impl_->num_followed++] = stream;
  last_followed_.store(stream, std::memory_order_release);
}

// Each once; how many, or more than kMaxFencedStreams when they are too many.
std::size_t Engine::Impl::known_streams(std::array<StreamHandle, kMaxFencedStreams>& streams) const noexcept {
  // A full list may lack one, which could not be waited for.
  std::size_t count = num_followed == kMaxFencedStreams ? kMaxFencedStreams + 1 : 0;
  const auto add = [&](StreamHandle stream) {
    const auto end = streams.begin() + static_cast<std::ptrdiff_t>(std::min(count, kMaxFencedStreams));
    if (std::find(streams.begin(), end, stream) != end) return;
    if (count < kMaxFencedStreams) streams[count] = stream;
    ++count;
  };
  for (RoleIndex role = 0; role < roles.count(); ++role) add(roles.handle_of(role));
  for (std::size_t i = 0; i < num_followed; ++i) add(followed[i]);
  return count;
}

// How many streams are known now. After a new one has appeared nothing counts that was waited for without it.
std::size_t Engine::Impl::refresh_known_streams() noexcept {
  if (counted_roles == roles.count() && counted_followed == num_followed) return num_known_streams;
  counted_roles = roles.count();
  counted_followed = num_followed;
  std::array<StreamHandle, kMaxFencedStreams> streams{};
  const std::size_t count = known_streams(streams);
  if (count != num_known_streams) waited.fill(0);
  return num_known_streams = count;
}

// True when `place`, just taken, may be used on the role's stream: it was its own, or the stream waits for the others.
bool Engine::Impl::settle(Lock& lock, const Arena::Place& place, RoleIndex role) noexcept {
  const LastFrees* owners = place.extent->owners.get();
  if (owners == nullptr) return place.extent->role == role;
  if (!owners->knows(role)) return false;
  const std::size_t num_streams = refresh_known_streams();
  const Epoch known = waited[static_cast<std::size_t>(role)];
  const Epoch needed = owners->latest_foreign(place.extent->map.offset_of(place.block), place.size(), role, known);
  if (needed == known) return true;
  if (!handover) return false;
  FenceRow* row = fence_rows.find(needed, num_streams);
  if (row == nullptr && place.size() >= kLeastLateRow) row = record_row(lock);
  if (row == nullptr || row->num_streams != refresh_known_streams()) return false;  // a stream appeared meanwhile
  return wait_for(lock, *row, role);
}

// The bytes of a slot in which nothing lives but blocks that wait for streams: the role's stream waits for these streams
// in their place, on the device. Not for less than a stream is worth stopping for.
Arena::Place Engine::Impl::take_awaited(Lock& lock, Arena& arena, Bytes offset, Bytes size, RoleIndex role) noexcept {
  constexpr int kMostBlocks = 16;
  if (size < kLeastLateRow) return {};
  for (int i = 0; i < kMostBlocks; ++i) {  // blocks may change while the lock is open
    const Arena::Place busy = arena.first_used(offset, size);
    if (!busy) return arena.take_slot(offset, size);
    const Arena::Note& note = busy.note();
    if (!note.freed || note.lost || !upstream.fences_allowed()) return {};
    if (!(note.role == role ? wait_for_uses(lock, busy) : leave_to_rows(lock, busy))) return {};
  }
  return {};
}

// Takes all that waits for the block's streams out of the queue; 0 where a thread asks about some of it just now.
std::size_t Engine::Impl::take_awaiting(const Arena::Place& place, AwaitingOfBlock& entries) noexcept {
  const auto is_its = [&](const Awaiting& entry) { return entry.place.extent == place.extent && entry.place.block == place.block; };
  const auto count = std::count_if(awaiting.begin(), awaiting.end(), is_its);
  if (count != place.note().fences || count > static_cast<std::ptrdiff_t>(entries.size())) return 0;
  std::copy_if(awaiting.begin(), awaiting.end(), entries.begin(), is_its);
  awaiting.erase(std::remove_if(awaiting.begin(), awaiting.end(), is_its), awaiting.end());
  return static_cast<std::size_t>(count);
}

// A block comes back to its own stream: safe whatever the host does, because that stream waits for the fences that were
// recorded at the free, as record_stream promises. False, and the block goes on waiting, where it cannot.
bool Engine::Impl::wait_for_uses(Lock& lock, const Arena::Place& place) noexcept {
  AwaitingOfBlock entries;
  const std::size_t count = take_awaiting(place, entries);
  const StreamHandle waiting = roles.handle_of(place.note().role);
  lock.unlock();
  bool waits = count > 0 && upstream.fences_allowed();
  for (std::size_t i = 0; waits && i < count; ++i)
    waits = entries[i].fence != 0 && upstream.stream_wait_fence(waiting, entries[i].fence);
  for (std::size_t i = 0; waits && i < count; ++i) upstream.release_fence(entries[i].fence);
  lock.lock();
  if (!waits) {
    for (std::size_t i = 0; i < count; ++i) put_back(entries[i]);
    return false;
  }
  ++stats.reuse_waits;
  place.note().fences = 0;
  stats.awaiting_bytes -= place.size();
  release(place);
  return true;
}

// A block of another stream in a shared space: its bytes count as freed, at its free, by every stream that used it. Whoever
// takes any of them waits for a row of that moment or later.
bool Engine::Impl::leave_to_rows(Lock& lock, const Arena::Place& place) noexcept {
  LastFrees* owners = place.extent->owners.get();
  if (!handover || debug || owners == nullptr) return false;  // poison would be written before what it waits for
  const Arena::RoleSet uses = place.note().uses;
  for (std::size_t role = 0; role < uses.size(); ++role)
    if (uses.test(role) && !owners->knows(static_cast<RoleIndex>(role))) return false;
  AwaitingOfBlock entries;
  const std::size_t count = take_awaiting(place, entries);
  if (count == 0) return false;
  const Bytes offset = place.extent->map.offset_of(place.block);
  for (std::size_t role = 0; role < uses.size(); ++role)
    if (uses.test(role)) owners->note(offset, place.size(), static_cast<RoleIndex>(role), place.note().freed_at);
  place.note().fences = 0;
  stats.awaiting_bytes -= place.size();
  release(place);
  lock.unlock();
  for (std::size_t i = 0; i < count; ++i)
    if (entries[i].fence != 0) upstream.release_fence(entries[i].fence);
  lock.lock();
  return true;
}

// Fences on every known stream, behind all that was freed so far. Null when they could not be recorded: while a capture goes
// on, among others.
FenceRow* Engine::Impl::record_row(Lock& lock) noexcept {
  FenceRow made;
  made.num_streams = known_streams(made.streams);
  if (made.num_streams > kMaxFencedStreams || epoch == std::numeric_limits<Epoch>::max()) return nullptr;
  FenceRow* row = fence_rows.oldest_unused();
  if (row == nullptr) return nullptr;
  const FenceRow old = *row;
  *row = FenceRow{};
  ++row->num_users;
  made.epoch = epoch++;  // frees from here on belong to the next row
  lock.unlock();
  for (std::size_t i = 0; i < old.num_streams; ++i) upstream.release_fence(old.fences[i]);
  bool is_whole = upstream.fences_allowed();
  std::size_t num_recorded = 0;
  for (; is_whole && num_recorded < made.num_streams; num_recorded += is_whole ? 1 : 0) {
    made.fences[num_recorded] = upstream.record_fence(made.streams[num_recorded]);
    is_whole = made.fences[num_recorded] != 0;
  }
  for (std::size_t i = 0; !is_whole && i < num_recorded; ++i) upstream.release_fence(made.fences[i]);
  lock.lock();
  *row = is_whole ? made : FenceRow{};
  if (!is_whole) return nullptr;
  stats.handover_fences += static_cast<std::int64_t>(made.num_streams);
  return row;
}

bool Engine::Impl::wait_for(Lock& lock, FenceRow& row, RoleIndex role) noexcept {
  const StreamHandle waiting = roles.handle_of(role);
  ++row.num_users;  // its fences stay while the lock is open
  lock.unlock();
  bool waits = upstream.fences_allowed();
  for (std::size_t i = 0; waits && i < row.num_streams; ++i)
    if (row.streams[i] != waiting) waits = upstream.stream_wait_fence(waiting, row.fences[i]);
  lock.lock();
  --row.num_users;
  if (!waits) return false;
  ++stats.handover_waits;
  if (row.num_streams == num_known_streams) {
    Epoch& until = waited[static_cast<std::size_t>(role)];
    until = std::max(until, row.epoch);
  }
  return true;
}

// The place where it may be used, else none.
Arena::Place Engine::Impl::settled(Lock& lock, const Arena::Place& place, RoleIndex role) noexcept {
  if (!place) return place;
  place.note().settling = true;
  const bool may_use = settle(lock, place, role);
  place.note().settling = false;
  if (may_use) return place;
  place.extent->map.release(place.block);
  return {};
}

bool Engine::Impl::may_go_back(const Arena::Extent& extent) const noexcept {
  if (extent.owners == nullptr) return true;
  const Epoch needed = extent.owners->latest_foreign(0, extent.map.size(), extent.role);
  return needed == 0 ||
         needed <= waited[static_cast<std::size_t>(extent.role)];
}

// An extent goes back into the native pool of its stream, which will reuse it at once: that stream waits for the others
// first. Extents for which it cannot are held back. Settles all in which nothing lives, whichever of them will go.
void Engine::Impl::settle_empty_extents(Lock& lock) noexcept {
  refresh_known_streams();
  const auto is_open = [&](const Arena::Extent* extent) { return extent->map.num_used() == 0 && !may_go_back(*extent); };
  for (RoleIndex attempt = 0; attempt < kMaxSharingRoles; ++attempt) {  // extents may change while the lock is open
    const auto open = std::find_if(extents.begin(), extents.end(), is_open);
    if (open == extents.end()) break;
    const RoleIndex role = (*open)->role;
    FenceRow* row = record_row(lock);
    refresh_known_streams();
    if (row == nullptr || !wait_for(lock, *row, role)) break;
  }
  for (Arena::Extent* extent : extents) extent->held_back = is_open(extent);
}

}  // namespace stalloc
