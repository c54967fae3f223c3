// A step that turns out longer than its plan was made for: the slots are placed anew at once, before the step's large
// requests come, and what the arena then lacks is taken by the first request that needs it.
#include <algorithm>
#include <numeric>
#include <thread>
#include <unordered_map>
#include <utility>

#include "core/plan_builder.h"
#include "runtime/engine_impl.h"

namespace stalloc {
namespace {

// For a better placement than the first one found: so long for each slot, within these.
constexpr double kPlacementSecondsPerSlot = 20e-6;
constexpr double kLeastPlacementSeconds = 0.03;
constexpr double kMostPlacementSeconds = 0.4;
constexpr double kPlacementTolerance = 0.002;  // that is not worth the time
constexpr unsigned kPlacementThreads = 4;      // at most, of plans that are large enough
constexpr std::size_t kManySlots = 2000;
constexpr double kPlacementTimes = 1.05;       // of the least arena: what it may cost to place around what lives now
constexpr Bytes kTakenShare = 128;  // of the arena: what is kept clear of slots for blocks that live now
constexpr int kMostLayouts = 4;             // in one step: each micro-step may have a longer batch

// Around what lives now; as if only persistent slots were in use where that would make the arena much larger for ever: requests of
// this step that then miss their slots cost less. Where steps differ many would, in later steps too.
Plan place_longer(const Plan& old, const std::vector<Bytes>& needed, Standing standing, bool varies) {
  PlannerOptions options;
  options.deadline_s = std::clamp(kPlacementSecondsPerSlot * static_cast<double>(old.slots.size()), kLeastPlacementSeconds, kMostPlacementSeconds);
  options.tolerance = kPlacementTolerance;
  if (old.slots.size() >= kManySlots)
    options.num_threads = static_cast<int>(std::clamp(std::thread::hardware_concurrency(), 1u, kPlacementThreads));
  Plan around = resized(old, needed, options, standing);
  const Bytes least = std::accumulate(around.lower_bound_bytes.begin(), around.lower_bound_bytes.end(), Bytes{0});
  const auto is_much_less = [](Bytes bytes, const Plan& plan) {
    return kPlacementTimes * static_cast<double>(bytes) < static_cast<double>(plan.total_arena_bytes());
  };
  if (varies || !is_much_less(least, around)) return around;
  for (std::size_t i = 0; i < old.slots.size(); ++i) standing.keeps_slot[i] = standing.keeps_slot[i] && old.slots[i].kind == SlotKind::kPersistent;
  standing.taken.clear();
  Plan freely = resized(old, needed, options, standing);
  return is_much_less(freely.total_arena_bytes(), around) ? freely : around;
}

}  // namespace

bool Engine::Impl::wants_layout() const noexcept {
  if (!(has_outgrown || cursor.has_outgrown()) || script == nullptr) return false;
  return !is_between_steps && plan_step >= layout_from_step && is_quiet();
}

// The first requests of a step that is longer than the plan: soon the slots will be placed anew, and an arena in which nothing
// lives then goes back as a whole, for one that is long enough.
bool Engine::Impl::awaits_layout(RoleIndex role) const noexcept {
  if (script == nullptr || plan_step < layout_from_step) return false;
  const auto& planned = arenas[static_cast<std::size_t>(script->plan->space_of(role))].planned();
  return std::all_of(planned.begin(), planned.end(), [](const Arena::Extent* extent) { return extent->map.num_used() == 0; });
}

// Blocks that live now stay where they are and would stand in the way of slots that are placed as if they were not: a
// step that is well under way is served as it is, and the next one begins with the new places.
bool Engine::Impl::is_quiet() const noexcept {
  Bytes live = levels[0].bytes + stats.awaiting_bytes;
  Bytes total = script->plan->total_arena_bytes();
  bool has_extents = false;  // of residents, which are left alone
  for (std::size_t space = 0; space < script->resident_extents.size(); ++space) {
    const Bytes end = script->resident_extents[space];
    const auto& planned = arenas[space].planned();
    if (end == 0 || planned.empty() || planned.front()->map.size() != end) continue;
    has_extents = true;
    live -= planned.front()->map.used_bytes();
    total -= end;
  }
  if (!has_extents) {
    live -= script->persistent_bytes;
    total -= script->persistent_bytes;
  }
  return 2 * live <= total;
}

std::vector<Bytes> Engine::Impl::needed_variables() const {
  std::vector<Bytes> met;
  std::vector<bool> is_told;
  for (std::size_t i = 0; i < script->plan->variable_bytes.size(); ++i) {
    const Bytes present = cursor.trusted_value(i);
    met.push_back(std::max(variable_bytes[i], present));
    is_told.push_back(present > 0);
  }
  return script->plan->needed_variables(met, is_told);
}

// What lives now in its slot keeps it, where no length changes the slot. Of other blocks nothing may lie on the smallest, up to a
// small share of the arena: a step's first ones, served before its length was known, could keep the largest requests from their
// new slots.
void Engine::Impl::keep_live(const std::vector<Arena::Extent*>& those, RoleIndex space, Standing& standing) const {
  const Plan& plan = *script->plan;
  std::unordered_map<Bytes, Bytes> live;  // by offset
  Bytes begin = 0;
  for (const Arena::Extent* extent : those) {
    const BlockMap& map = extent->map;
    for (auto at = map.first(); at != BlockMap::kNoBlock; at = map.next(at))
      if (map.block(at).used) live.emplace(begin + map.offset_of(at), map.size_of(at));
    begin += map.size();
  }
  const Tick period = plan.window_end - plan.window_begin;
  Tick last = now;  // of the live slots whose requests are not in their places
  for (std::size_t i = 0; i < plan.slots.size(); ++i) {
    const Slot& slot = plan.slots[i];
    if (plan.space_of(slot.role) != space || slot.kind == SlotKind::kUnplanned || slot.kind == SlotKind::kRoom) continue;
    const bool is_persistent = slot.kind == SlotKind::kPersistent && plan.num_prologue > 0;
    const bool lives = (slot.birth <= now && now < slot.death) || now < slot.death - period;
    if (!is_persistent && !lives) continue;
    const auto block = live.find(slot.offset);
    const bool is_there = block != live.end() && block->second <= slot.size && slot.model.variable == kNoVariable;
    if (!is_there && !is_persistent) {
      last = std::max(last, std::min(slot.death, plan.window_end));
      continue;
    }
    standing.keeps_slot[i] = true;
    if (block != live.end()) live.erase(block);
  }
  std::vector<Obstacle>& taken = standing.taken.emplace_back();
  for (const auto& [offset, size] : live)
    if (script->varies) taken.push_back({0, plan.window_end, offset, size});
    else if (size < kSmallBytes && now < last) taken.push_back({now, last, offset, size});
  std::sort(taken.begin(), taken.end(), [](const Obstacle& a, const Obstacle& b) {
    return std::make_pair(a.size, a.offset) < std::make_pair(b.size, b.offset);
  });
  Bytes bytes = 0;
  std::size_t count = 0;
  while (count < taken.size() && (bytes += taken[count].size) <= plan.total_arena_bytes() / kTakenShare) ++count;
  taken.resize(count);
}

void Engine::Impl::lay_out_anew(Lock& lock) noexcept {
  layout_from_step = plan_step + 1;  // again in this step only where this one succeeds
  const Script* asked_by = script.get();
  std::unique_ptr<const Script> next;
  std::vector<std::vector<Arena::Extent*>> standing_extents;
  std::vector<std::unique_ptr<Arena::Extent>> idle;
  Standing standing;
  try {
    const Plan& old = *asked_by->plan;
    const std::vector<Bytes> needed = needed_variables();
    standing.keeps_slot.assign(old.slots.size(), false);
    standing.resident_extents = asked_by->resident_extents;
    standing.keeps_space.assign(static_cast<std::size_t>(old.num_roles), true);
    for (const Slot& slot : old.slots) {
      if (slot.model.variable == kNoVariable) continue;
      const auto variable = static_cast<std::size_t>(slot.model.variable);
      if (needed[variable] > old.variable_bytes[variable]) standing.keeps_space[static_cast<std::size_t>(old.space_of(slot.role))] = false;
    }
    for (std::size_t space = 0; space < standing.keeps_space.size(); ++space) {
      standing_extents.push_back(arenas[space].live_plan_extents());
      standing.extent_ends.emplace_back();
      Bytes end = 0;
      for (const Arena::Extent* extent : standing_extents.back()) standing.extent_ends.back().push_back(end += extent->map.size());
      keep_live(standing_extents.back(), static_cast<RoleIndex>(space), standing);
    }
    const Bytes limit = arena_limit;
    idle.reserve(ExtentTable::kMaxExtents);
    lock.unlock();
    auto plan = std::make_shared<const Plan>(place_longer(old, needed, standing, asked_by->varies));
    if (limit == 0 || plan->total_arena_bytes() <= limit) next = std::make_unique<const Script>(std::move(plan));
    lock.lock();
    if (next != nullptr) make_room(*next);
  } catch (const std::exception&) {
    next = nullptr;  // no memory for it: the step is served from the places there are, as far as they go
  }
  if (!lock.owns_lock()) lock.lock();
  settle_empty_extents(lock);
  if (next == nullptr || script.get() != asked_by) return;
  for (std::size_t space = 0; space < standing_extents.size(); ++space)
    if (!standing.keeps_space[space] && !arenas[space].are_live_plan_extents(standing_extents[space])) return;
  for (std::size_t space = 0; space < standing_extents.size(); ++space) {
    if (standing.keeps_space[space]) continue;
    extent_from_step[space] = plan_step;
    arenas[space].take_idle_plan_extents(idle);
  }
  for (const auto& extent : idle) {
    extents.erase(std::find(extents.begin(), extents.end(), extent.get()));
    stats.extent_bytes -= extent->map.size();
  }
  engine.extent_bytes_.store(stats.extent_bytes, std::memory_order_relaxed);
  replace_script(std::move(next));
  cursor.adopt_layout(script->steps.front());
  has_outgrown = false;
  if (!script->varies && ++num_layouts < kMostLayouts) layout_from_step = plan_step;
  lock.unlock();
  for (auto& extent : idle) give_back(std::move(extent));
  lock.lock();
}

}  // namespace stalloc
