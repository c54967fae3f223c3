#include "core/slot_placement.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <utility>

#include "core/handover.h"

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

// Places slots, and after them ranges that are taken for ever, around what is fixed. `ranges` holds their sizes and gets
// their offsets.
Placement place_group(const Plan& plan, const std::vector<Slot*>& slots, std::vector<Bytes>& ranges,
                      const std::vector<Obstacle>& fixed, const PlannerOptions& options) {
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
  for (const Bytes size : ranges) buffers.push_back({0, plan.window_end, size});
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
    if (cyclic.size() < 2 || best.peak_bytes <= best.lower_bound_bytes) break;
  }
  stack_cyclic(plan, best_stack, fixed);
  for (std::size_t i = 0; i < others.size(); ++i) others[i]->offset = best.offsets[i];
  for (std::size_t i = 0; i < ranges.size(); ++i) ranges[i] = best.offsets[others.size() + i];
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
  std::vector<Bytes> no_ranges;
  const Placement placement = place_group(plan, slots, no_ranges, {}, own);
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

void place_space(Plan& plan, RoleIndex space, const PlannerOptions& options, const Standing& standing) {
  std::vector<Obstacle> fixed = walls_of(plan, space, standing);
  std::vector<Slot*> slots;
  for (Slot& slot : plan.slots) {
    if (plan.space_of(slot.role) != space || slot.kind == SlotKind::kUnplanned) continue;
    if (standing.keeps_persistent && slot.kind == SlotKind::kPersistent)
      fixed.push_back({slot.birth, slot.death, slot.offset, slot.size});
    else slots.push_back(&slot);
  }
  const std::vector<Strip> strips = take_strips(plan, space, slots, options);
  std::vector<Bytes> ranges;
  for (const Strip& strip : strips) ranges.push_back(strip.range_bytes);
  const Placement placement = place_group(plan, slots, ranges, fixed, options);
  for (std::size_t i = 0; i < strips.size(); ++i)
    for (Slot* slot : strips[i].slots) slot->offset += round_up(ranges[i], kHandoverPage);
  plan.arena_bytes[static_cast<std::size_t>(space)] = round_up(placement.peak_bytes, kAlignment);
  plan.lower_bound_bytes[static_cast<std::size_t>(space)] = placement.lower_bound_bytes;
}

}  // namespace

void place_slots(Plan& plan, const PlannerOptions& options, const Standing& standing) {
  PlannerOptions aligned = options;
  aligned.alignment = kAlignment;
  std::vector<Bytes> arena_bytes(static_cast<std::size_t>(plan.num_roles), 0);
  std::vector<Bytes> lower_bound_bytes = arena_bytes;
  std::swap(plan.arena_bytes, arena_bytes);
  std::swap(plan.lower_bound_bytes, lower_bound_bytes);
  for (RoleIndex space = 0; space < plan.num_roles; ++space) {
    if (plan.space_of(space) != space) continue;
    const auto index = static_cast<std::size_t>(space);
    if (index < standing.keeps_space.size() && standing.keeps_space[index]) {
      plan.arena_bytes[index] = arena_bytes[index];
      plan.lower_bound_bytes[index] = lower_bound_bytes[index];
    } else {
      place_space(plan, space, aligned, standing);
    }
  }
}

}  // namespace stalloc
