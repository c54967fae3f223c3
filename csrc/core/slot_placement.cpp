#include "core/slot_placement.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <utility>

#include "core/handover.h"
#include "core/residents.h"

namespace stalloc {
namespace {

double seconds_since(std::chrono::steady_clock::time_point began) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
}

using CyclicOrder = bool (*)(const Slot*, const Slot*);

// Which cyclic slots lie lowest: what is best depends on whether the fronts or the backs of their lives are
// crowded, so each is tried until one meets the bound.
constexpr std::array<CyclicOrder, 4> kCyclicOrders = {
    [](const Slot* a, const Slot* b) { return a->death - a->birth > b->death - b->birth; },
    [](const Slot* a, const Slot* b) { return a->birth < b->birth; },
    [](const Slot* a, const Slot* b) { return a->death > b->death; },
    [](const Slot* a, const Slot* b) { return a->death < b->death; },
};

bool meets(const Obstacle& obstacle, const Slot& slot, const Plan& plan, Bytes offset) {
  const bool at_once = obstacle.upper > slot.birth ||
                       obstacle.lower < plan.window_begin + (slot.death - plan.window_end);
  return at_once && obstacle.offset < offset + slot.size && offset < obstacle.offset + obstacle.size;
}

// Cyclic slots all live at the cut, so stacking them there wastes nothing; they stand as obstacles to the rest.
// Returns `fixed` with theirs.
std::vector<Obstacle> stack_cyclic(const Plan& plan, const std::vector<Slot*>& cyclic, std::vector<Obstacle> fixed) {
  std::vector<Obstacle> obstacles = fixed;
  std::sort(fixed.begin(), fixed.end(), [](const Obstacle& a, const Obstacle& b) { return a.offset < b.offset; });
  Bytes offset = 0;
  for (Slot* slot : cyclic) {
    for (const Obstacle& obstacle : fixed)
      if (meets(obstacle, *slot, plan, offset)) offset = obstacle.offset + obstacle.size;
    slot->offset = offset;
    offset += slot->size;
    obstacles.push_back({slot->birth, plan.window_end, slot->offset, slot->size});
    obstacles.push_back({plan.window_begin, plan.window_begin + (slot->death - plan.window_end), slot->offset, slot->size});
  }
  return obstacles;
}

// The granule before each extent's end stays empty for ever, so that nothing lies across it; so does what is taken.
std::vector<Obstacle> walls_of(const Plan& plan, RoleIndex space, const Standing& standing) {
  std::vector<Obstacle> walls;
  if (static_cast<std::size_t>(space) >= standing.extent_ends.size()) return walls;
  for (const Bytes end : standing.extent_ends[static_cast<std::size_t>(space)])
    if (end >= kAlignment) walls.push_back({0, plan.window_end, end - kAlignment, kAlignment});
  if (static_cast<std::size_t>(space) < standing.taken.size()) {
    const std::vector<Obstacle>& taken = standing.taken[static_cast<std::size_t>(space)];
    walls.insert(walls.end(), taken.begin(), taken.end());
  }
  return walls;
}

// Places slots around what is fixed.
Placement place_group(const Plan& plan, const std::vector<Slot*>& slots, const std::vector<Obstacle>& fixed, const PlannerOptions& options) {
  std::vector<Slot*> cyclic;
  std::vector<Slot*> others;
  std::vector<Buffer> buffers;
  for (Slot* slot : slots) {
    if (slot->kind == SlotKind::kCyclic) {
      cyclic.push_back(slot);
    } else {
      others.push_back(slot);
      buffers.push_back({slot->birth, slot->death, slot->size});
    }
  }
  const auto began = std::chrono::steady_clock::now();
  Placement best;
  std::vector<Slot*> best_stack;
  for (const CyclicOrder order : kCyclicOrders) {
    // Further orders only where there is time left: the deadline is that of the whole group.
    const double elapsed_s = seconds_since(began);
    if (order != kCyclicOrders.front() && elapsed_s >= options.deadline_s) break;
    PlannerOptions remaining = options;
    remaining.deadline_s = options.deadline_s - elapsed_s;
    std::stable_sort(cyclic.begin(), cyclic.end(), order);
    Placement placement = place(buffers, stack_cyclic(plan, cyclic, fixed), remaining);
    if (order != kCyclicOrders.front() && placement.peak_bytes >= best.peak_bytes) continue;
    best = std::move(placement);
    best_stack = cyclic;
    const double good_enough = static_cast<double>(best.lower_bound_bytes) * (1 + options.tolerance);
    if (cyclic.size() < 2 || static_cast<double>(best.peak_bytes) <= good_enough) break;
  }
  stack_cyclic(plan, best_stack, fixed);
  for (std::size_t i = 0; i < others.size(); ++i) others[i]->offset = best.offsets[i];
  return best;
}

// The small slots of one role, placed among themselves in a strip of whole pages.
struct Strip {
  std::vector<Slot*> slots;
  Bytes range_bytes = 0;  // what it takes wherever it begins
};

Strip make_strip(const Plan& plan, std::vector<Slot*> slots, const PlannerOptions& options) {
  constexpr double kShareOfDeadline = 0.1;
  PlannerOptions own = options;
  own.deadline_s = options.deadline_s * kShareOfDeadline;
  const Placement placement = place_group(plan, slots, {}, own);
  return {std::move(slots), round_up(placement.peak_bytes, kHandoverPage) + kHandoverPage};
}

bool has_rooms(const Plan& plan) {
  return std::any_of(plan.slots.begin(), plan.slots.end(), [](const Slot& slot) { return slot.kind == SlotKind::kRoom; });
}

// Moves small slots out of `slots` into strips, one a role: where streams share the space, and where steps differ, since a
// small request that is taken for another one and lives longer would keep a large one from its slot.
std::vector<Strip> take_strips(Plan& plan, RoleIndex space, std::vector<Slot*>& slots, const PlannerOptions& options) {
  std::vector<Strip> strips;
  const bool is_shared = plan.is_shared(space);
  if (!is_shared && !has_rooms(plan)) return strips;
  for (RoleIndex role = 0; role < plan.num_roles; ++role) {
    const auto small = std::stable_partition(slots.begin(), slots.end(), [&](const Slot* slot) {
      return slot->role != role || slot->size >= kLeastHandover || (!is_shared && slot->kind == SlotKind::kRoom);
    });
    if (small == slots.end()) continue;
    strips.push_back(make_strip(plan, {small, slots.end()}, options));
    slots.erase(small, slots.end());
  }
  return strips;
}

void set_arena(Plan& plan, RoleIndex space, const Placement& placement) {
  plan.arena_bytes[static_cast<std::size_t>(space)] = round_up(placement.peak_bytes, kAlignment);
  plan.lower_bound_bytes[static_cast<std::size_t>(space)] = placement.lower_bound_bytes;
}

// Where a strip begins that is taken for ever: the lowest place that nothing fixed meets, at the bottom or on what is taken for
// ever too, so that it cuts no room in two.
Bytes strip_begin(const Plan& plan, const std::vector<Obstacle>& fixed, Bytes size) {
  std::vector<Bytes> begins{0};
  Bytes highest = 0;
  for (const Obstacle& obstacle : fixed) {
    const Bytes end = round_up(obstacle.offset + obstacle.size, kHandoverPage);
    if (obstacle.lower == 0 && obstacle.upper == plan.window_end) begins.push_back(end);
    highest = std::max(highest, end);
  }
  std::sort(begins.begin(), begins.end());
  for (const Bytes begin : begins)
    if (std::none_of(fixed.begin(), fixed.end(), [&](const Obstacle& one) { return one.offset < begin + size && begin < one.offset + one.size; }))
      return begin;
  return highest;
}

// `slots` anywhere around what is fixed. Strips are placed first: what is taken for ever would make one problem of all that lives
// at different times.
void place_mixed(Plan& plan, RoleIndex space, std::vector<Slot*> slots, std::vector<Obstacle> fixed, const PlannerOptions& options) {
  for (const Strip& strip : take_strips(plan, space, slots, options)) {
    const Bytes begin = strip_begin(plan, fixed, strip.range_bytes);
    for (Slot* slot : strip.slots) slot->offset += begin;
    fixed.push_back({0, plan.window_end, begin, strip.range_bytes});
  }
  set_arena(plan, space, place_group(plan, slots, fixed, options));
}

void add_obstacle(const Plan& plan, const Slot& slot, std::vector<Obstacle>& obstacles) {
  obstacles.push_back({slot.birth, std::min(slot.death, plan.window_end), slot.offset, slot.size});
  if (slot.death > plan.window_end)
    obstacles.push_back({plan.window_begin, plan.window_begin + (slot.death - plan.window_end), slot.offset, slot.size});
}

bool fits_closely(Bytes arena_bytes, Bytes least_bytes) {
  constexpr double kMostTimes = 1.002;
  return static_cast<double>(arena_bytes - kExtentGranule) <= kMostTimes * static_cast<double>(least_bytes);
}

// Residents at the bottom, one upon the other, in an extent of their own, and the rest above or where they leave room for a time.
// False where that is not worth it.
bool place_apart(Plan& plan, RoleIndex space, std::vector<Slot*> slots, const std::vector<bool>& residents,
                 const PlannerOptions& options) {
  const auto index = static_cast<std::size_t>(space);
  const Bytes mixed_bytes = plan.arena_bytes[index];
  const Bytes lower_bound_bytes = plan.lower_bound_bytes[index];
  const auto is_resident = [&](const Slot* slot) { return residents[static_cast<std::size_t>(slot - plan.slots.data())]; };
  const auto others = std::stable_partition(slots.begin(), slots.end(), is_resident);
  std::vector<Obstacle> fixed;
  Bytes end = 0;
  for (auto at = slots.begin(); at != others; ++at) {
    (*at)->offset = end;
    end += (*at)->size;
    add_obstacle(plan, **at, fixed);
  }
  if (others == slots.begin() || others == slots.end() || extent_end_above(end) < kLeastResidentBytes) return false;
  fixed.push_back({0, plan.window_end, extent_end_above(end) - kAlignment, kAlignment});
  PlannerOptions half = options;
  half.deadline_s /= 2;
  place_mixed(plan, space, {others, slots.end()}, fixed, half);
  plan.lower_bound_bytes[index] = lower_bound_bytes;
  return fits_closely(plan.arena_bytes[index], mixed_bytes);
}

// Moves the small residents into an extent below all others: 512 bytes that live on can hold up a whole arena too.
void move_small_apart(Plan& plan, RoleIndex space, const std::vector<Slot*>& slots, const std::vector<bool>& residents) {
  constexpr Bytes kSmall = Bytes{1} << 20;
  Bytes& arena_bytes = plan.arena_bytes[static_cast<std::size_t>(space)];
  const auto is_small = [&](const Slot* slot) { return slot->size < kSmall && residents[static_cast<std::size_t>(slot - plan.slots.data())]; };
  Bytes end = 0;
  for (const Slot* slot : slots)
    if (is_small(slot)) end += slot->size;
  if (end == 0 || arena_bytes < kLeastArenaBytes || !fits_closely(arena_bytes + extent_end_above(end), arena_bytes)) return;
  Bytes next = 0;
  for (Slot* slot : slots) {
    if (!is_small(slot)) slot->offset += extent_end_above(end);
    else slot->offset = std::exchange(next, next + slot->size);
  }
  arena_bytes += extent_end_above(end);
}

// What lives while batches come is apart where that costs next to nothing, so that the rest can be exchanged for a longer batch.
void place_anew(Plan& plan, RoleIndex space, const std::vector<Slot*>& slots, const std::vector<bool>& residents,
                const PlannerOptions& options) {
  const auto index = static_cast<std::size_t>(space);
  place_mixed(plan, space, slots, {}, options);
  const Bytes mixed_bytes = plan.arena_bytes[index];
  std::vector<Bytes> mixed;
  for (const Slot* slot : slots) mixed.push_back(slot->offset);
  if (place_apart(plan, space, slots, residents, options)) return;
  plan.arena_bytes[index] = mixed_bytes;
  for (std::size_t i = 0; i < slots.size(); ++i) slots[i]->offset = mixed[i];
  move_small_apart(plan, space, slots, residents);
}

void place_space(Plan& plan, RoleIndex space, const std::vector<bool>& residents, Bytes resident_extent,
                 const PlannerOptions& options, const Standing& standing) {
  std::vector<Obstacle> fixed = walls_of(plan, space, standing);
  const bool keeps_residents = resident_extent > 0 && !fixed.empty() && fixed.front().offset == resident_extent - kAlignment;
  std::vector<Slot*> slots;
  for (std::size_t i = 0; i < plan.slots.size(); ++i) {
    Slot& slot = plan.slots[i];
    if (plan.space_of(slot.role) != space || slot.kind == SlotKind::kUnplanned) continue;
    if ((i < standing.keeps_slot.size() && standing.keeps_slot[i]) || (keeps_residents && residents[i]))
      add_obstacle(plan, slot, fixed);
    else slots.push_back(&slot);
  }
  if (fixed.empty()) place_anew(plan, space, slots, residents, options);
  else place_mixed(plan, space, slots, fixed, options);
}

}  // namespace

void place_slots(Plan& plan, const PlannerOptions& options, const Standing& standing) {
  PlannerOptions aligned = options;
  aligned.alignment = kAlignment;
  std::vector<Bytes> arena_bytes(static_cast<std::size_t>(plan.num_roles), 0);
  std::vector<Bytes> lower_bound_bytes = arena_bytes;
  std::swap(plan.arena_bytes, arena_bytes);
  std::swap(plan.lower_bound_bytes, lower_bound_bytes);
  const std::vector<bool> residents = find_residents(plan);
  const std::vector<Bytes> resident_ends = standing.extent_ends.empty() ? std::vector<Bytes>(static_cast<std::size_t>(plan.num_roles), 0) : standing.resident_extents;
  for (RoleIndex space = 0; space < plan.num_roles; ++space) {
    if (plan.space_of(space) != space) continue;
    const auto index = static_cast<std::size_t>(space);
    if (index < standing.keeps_space.size() && standing.keeps_space[index]) {
      plan.arena_bytes[index] = arena_bytes[index];
      plan.lower_bound_bytes[index] = lower_bound_bytes[index];
    } else {
      place_space(plan, space, residents, resident_ends[index], aligned, standing);
    }
  }
}

}  // namespace stalloc
