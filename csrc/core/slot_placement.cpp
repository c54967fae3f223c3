#include "core/slot_placement.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <utility>

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

// The granule before each extent's end stays empty for ever, so that nothing lies across it.
std::vector<Obstacle> walls_of(const Plan& plan, RoleIndex role, const Standing& standing) {
  std::vector<Obstacle> walls;
  if (static_cast<std::size_t>(role) >= standing.extent_ends.size()) return walls;
  for (const Bytes end : standing.extent_ends[static_cast<std::size_t>(role)])
    if (end >= kAlignment) walls.push_back({0, plan.window_end, end - kAlignment, kAlignment});
  return walls;
}

void place_role(Plan& plan, RoleIndex role, const PlannerOptions& options, const Standing& standing) {
  std::vector<Obstacle> fixed = walls_of(plan, role, standing);
  std::vector<Slot*> cyclic;
  std::vector<Slot*> others;
  std::vector<Buffer> buffers;
  for (Slot& slot : plan.slots) {
    if (slot.role != role || slot.kind == SlotKind::kUnplanned) continue;
    if (standing.keeps_persistent && slot.kind == SlotKind::kPersistent) {
      fixed.push_back({slot.birth, slot.death, slot.offset, slot.size});
    } else if (slot.kind == SlotKind::kCyclic) {
      cyclic.push_back(&slot);
    } else {
      others.push_back(&slot);
      buffers.push_back({slot.birth, slot.death, slot.size});
    }
  }
  const auto began = std::chrono::steady_clock::now();
  Placement best;
  std::vector<Slot*> best_stack;
  for (const CyclicOrder order : kCyclicOrders) {
    // Further orders only where there is time left: the deadline is that of the whole role.
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
  plan.arena_bytes.push_back(round_up(best.peak_bytes, kAlignment));
  plan.lower_bound_bytes.push_back(best.lower_bound_bytes);
}

}  // namespace

void place_slots(Plan& plan, const PlannerOptions& options, const Standing& standing) {
  PlannerOptions aligned = options;
  aligned.alignment = kAlignment;
  const std::vector<Bytes> arena_bytes = std::exchange(plan.arena_bytes, {});
  const std::vector<Bytes> lower_bound_bytes = std::exchange(plan.lower_bound_bytes, {});
  for (RoleIndex role = 0; role < plan.num_roles; ++role) {
    const auto index = static_cast<std::size_t>(role);
    if (index < standing.keeps_role.size() && standing.keeps_role[index]) {
      plan.arena_bytes.push_back(arena_bytes[index]);
      plan.lower_bound_bytes.push_back(lower_bound_bytes[index]);
    } else {
      place_role(plan, role, aligned, standing);
    }
  }
}

}  // namespace stalloc
