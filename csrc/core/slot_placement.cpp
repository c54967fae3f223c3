#include "core/slot_placement.h"

#include <algorithm>
#include <array>

namespace stalloc {
namespace {

using CyclicOrder = bool (*)(const Slot*, const Slot*);

// Which cyclic slots lie lowest: what is best depends on whether the fronts or the backs of their lives are
// crowded, so each is tried until one meets the bound.
constexpr std::array<CyclicOrder, 4> kCyclicOrders = {
    [](const Slot* a, const Slot* b) { return a->death - a->birth > b->death - b->birth; },
    [](const Slot* a, const Slot* b) { return a->birth < b->birth; },
    [](const Slot* a, const Slot* b) { return a->death > b->death; },
    [](const Slot* a, const Slot* b) { return a->death < b->death; },
};

// Cyclic slots all live at the cut, so stacking them there wastes nothing; they stand as obstacles to the rest.
std::vector<Obstacle> stack_cyclic(const Plan& plan, const std::vector<Slot*>& cyclic) {
  std::vector<Obstacle> obstacles;
  Bytes offset = 0;
  for (Slot* slot : cyclic) {
    slot->offset = offset;
    offset += slot->size;
    obstacles.push_back({slot->birth, plan.window_end, slot->offset, slot->size});
    obstacles.push_back({plan.window_begin, plan.window_begin + (slot->death - plan.window_end), slot->offset, slot->size});
  }
  return obstacles;
}

void place_role(Plan& plan, RoleIndex role, const PlannerOptions& options) {
  std::vector<Slot*> cyclic;
  std::vector<Slot*> others;
  std::vector<Buffer> buffers;
  for (Slot& slot : plan.slots) {
    slot.offset = slot.role == role ? kUnplaced : slot.offset;
    if (slot.role != role || slot.kind == SlotKind::kUnplanned) continue;
    if (slot.kind == SlotKind::kCyclic) {
      cyclic.push_back(&slot);
    } else {
      others.push_back(&slot);
      buffers.push_back({slot.birth, slot.death, slot.size});
    }
  }
  Placement best;
  std::vector<Slot*> best_stack;
  for (const CyclicOrder order : kCyclicOrders) {
    std::stable_sort(cyclic.begin(), cyclic.end(), order);
    Placement placement = place(buffers, stack_cyclic(plan, cyclic), options);
    if (order != kCyclicOrders.front() && placement.peak_bytes >= best.peak_bytes) continue;
    best = std::move(placement);
    best_stack = cyclic;
    if (cyclic.size() < 2 || best.peak_bytes <= best.lower_bound_bytes) break;
  }
  stack_cyclic(plan, best_stack);
  for (std::size_t i = 0; i < others.size(); ++i) others[i]->offset = best.offsets[i];
  plan.arena_bytes.push_back(round_up(best.peak_bytes, kAlignment));
  plan.lower_bound_bytes.push_back(best.lower_bound_bytes);
}

}  // namespace

void place_slots(Plan& plan, const PlannerOptions& options) {
  PlannerOptions aligned = options;
  aligned.alignment = kAlignment;
  plan.arena_bytes.clear();
  plan.lower_bound_bytes.clear();
  for (RoleIndex role = 0; role < plan.num_roles; ++role) place_role(plan, role, aligned);
}

}  // namespace stalloc
