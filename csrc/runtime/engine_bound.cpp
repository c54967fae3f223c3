// The first run's bound: what it would have reserved without a plan.
#include <algorithm>

#include "runtime/engine_impl.h"

namespace stalloc {
namespace {

constexpr std::int64_t kLongestDeferral = 64;  // steps
constexpr Bytes kBesideBytes = Bytes{20} << 20;  // what the upstream may take beside the arena, or
constexpr Bytes kBesideShare = 512;              // one part in so many of it
constexpr Bytes kMostGrowth = 2;  // a batch that is longer than so many of the longest is a step's once that step has ended
constexpr int kKnownInARow = 12;  // requests that the plan foretells: the step goes on

}  // namespace

void Engine::bound_by_recording() {
  const Upstream::Level level = impl_->upstream.level();
  const Impl::Lock lock(impl_->mutex);
  impl_->unplanned_reserved = level.reserved;
  bound_.store(level.reserved > 0);
  impl_->unplanned_peak = std::max(level.allocated + impl_->recorder.below_peak(), Bytes{1});
}

// For longer batches. A run without a plan would reserve at least as much as it did; of what it has allocated beyond that, more
// than what is allocated: half as wastefully as before.
bool Engine::Impl::may_plan_for(Bytes reserved, Bytes allocated) noexcept {
  if (!is_bound()) return true;
  const double ratio = 0.5 + 0.5 * static_cast<double>(unplanned_reserved) / static_cast<double>(unplanned_peak);
  return reserved <= std::max(unplanned_reserved, static_cast<Bytes>(ratio * static_cast<double>(allocated)));
}

void* Engine::make_way(Bytes more, Bytes size, StreamHandle stream) noexcept {
  if (!is_bound() || extent_bytes() == 0 || forked_.load(std::memory_order_relaxed)) return nullptr;
  if (impl_->has_room_for(more) || impl_->yield()) return nullptr;
  Impl::Lock lock(impl_->mutex);
  const RoleIndex role = impl_->roles.index_of(stream);
  if (role < 0) return nullptr;
  const Arena::Place place = impl_->take_any(lock, role, round_up(size, kAlignment));
  if (!place) return nullptr;
  if (impl_->script != nullptr) {
    ++impl_->stats.gap_hits;
    impl_->stats.gap_hit_bytes += size;
  }
  return impl_->hand_out(place, size, role);
}

// So long a batch that it may be an evaluation's, which needs less than a step of that length would.
bool Engine::Impl::is_doubtful() const noexcept {
  for (std::size_t i = 0; is_bound() && i < admitted_bytes.size(); ++i) {
    const Bytes told = cursor.trusted_value(i);
    if (told > admitted_bytes[i] && told > kMostGrowth * script->plan->variable_bytes[i]) return true;
  }
  return false;
}

// Whether the upstream may take so much more beside the arena: a little.
bool Engine::Impl::has_room_for(Bytes more) noexcept {
  const Bytes reserved = upstream.level().reserved;
  const Lock lock(mutex);
  if (settled_reserved == 0) settled_reserved = reserved;
  return reserved + more <= settled_reserved + std::max(kBesideBytes, stats.extent_bytes / kBesideShare);
}

// Gives what is empty of the arena back to the device. No lock is held.
bool Engine::Impl::yield() noexcept {
  if (engine.trim(true) == 0) return false;
  upstream.flush();
  const Lock lock(mutex);
  defer_extents();
  return true;
}

Arena::Place Engine::Impl::take_any(Lock& lock, RoleIndex role, Bytes rounded) noexcept {
  const Script* plan = script != nullptr && role < script->plan->num_roles ? script.get() : nullptr;
  const RoleIndex space = plan == nullptr ? role : plan->plan->space_of(role);
  Arena::Place place;
  if (plan != nullptr) place = take_idle(*plan, space, rounded, plan->varies);
  if (!place) place = arenas[static_cast<std::size_t>(space)].take_gap(rounded);
  return settled(lock, place, role);
}

// What begins with something that no plan foretells, while nothing lives in the arena, is no step: it is left to the
// upstream until steps go on, so that the arena can go back if that needs more room than there is beside it.
bool Engine::Impl::stays_out(bool is_known) noexcept {
  if (script->varies) return false;
  if (!is_stray) {
    num_known = 0;
    is_stray = !is_known && is_idle();
    return is_stray;
  }
  num_known = is_known ? num_known + 1 : 0;
  is_stray = num_known < kKnownInARow;
  return is_stray;
}

// An arena that had to go a short while ago stays away for longer: taking and returning it takes time.
void Engine::Impl::defer_extents() noexcept {
  const bool again = deferred_steps > 0 && plan_step - deferred_at <= 4 * deferred_steps;
  deferred_steps = again ? std::min(2 * deferred_steps, kLongestDeferral) : 1;
  deferred_at = plan_step;
  for (std::int64_t& from : extent_from_step) from = std::max(from, plan_step + deferred_steps);
}

bool Engine::Impl::is_idle() const noexcept {
  return std::all_of(extents.begin(), extents.end(), [](const Arena::Extent* extent) { return extent->map.num_used() == 0; });
}

}  // namespace stalloc
