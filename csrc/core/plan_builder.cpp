#include "core/plan_builder.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <utility>

#include "core/lifetimes.h"
#include "core/period.h"
#include "core/sequence.h"

namespace stalloc {
namespace {

// Lays the run out on one timeline. With a prologue: the recorded steps before the period's, then the head of
// the period's first pass up to the cut, then one turn of the circle (the window). Without: the window alone.
class TimelineBuilder {
 public:
  TimelineBuilder(const Lifetimes& lifetimes, RoleIndex num_roles, bool include_prologue)
      : lifetimes_(lifetimes), period_(find_period(lifetimes, num_roles)) {
    plan_.num_roles = num_roles;
    plan_.num_period = period_.num_copies;
    plan_.num_prologue = include_prologue ? static_cast<std::int32_t>(period_.base_step) + 1 : 0;
    period_begin_ = include_prologue ? lifetimes.step_begin[static_cast<std::size_t>(period_.base_step)] : 0;
    plan_.window_begin = include_prologue ? period_begin_ + period_.cut : 0;
    plan_.window_end = plan_.window_begin + period_.circle_ticks();
    tables_.resize(static_cast<std::size_t>(plan_.num_tables()) * static_cast<std::size_t>(num_roles));
  }

  Plan build() {
    const std::vector<std::int32_t> window = add_window();
    if (plan_.num_prologue > 0) {
      add_recorded_steps();
      add_first_pass(window);
    }
    add_period_tables(window);
    plan_.table_begin.push_back(0);
    for (const auto& table : tables_) {
      plan_.table_slots.insert(plan_.table_slots.end(), table.begin(), table.end());
      plan_.table_begin.push_back(static_cast<std::int64_t>(plan_.table_slots.size()));
    }
    return std::move(plan_);
  }

 private:
  std::vector<std::int32_t>& table(std::int32_t index, RoleIndex role) {
    return tables_[static_cast<std::size_t>(index * plan_.num_roles + role)];
  }
  std::int32_t add_slot(const Slot& slot) {
    plan_.slots.push_back(slot);
    return static_cast<std::int32_t>(plan_.slots.size() - 1);
  }

  // Where the circle's tick (of any copy) lies in the window.
  Tick in_window(Tick circle_tick) const {
    const Tick turned = circle_tick - period_.cut;
    return plan_.window_begin + (turned < 0 ? turned + period_.circle_ticks() : turned);
  }

  // One slot a block and copy; [copy * num_blocks + block].
  std::vector<std::int32_t> add_window() {
    std::vector<std::int32_t> slots;
    for (int copy = 0; copy < period_.num_copies; ++copy)
      for (const PeriodBlock& block : period_.blocks) {
        Slot slot{block.size, kUnplaced, in_window(block.birth + copy * period_.num_ticks), 0, block.role,
                  SlotKind::kUnplanned};
        slot.death = slot.birth + std::max<Tick>(block.death - block.birth, 1);
        if (block.planned) slot.kind = slot.death > plan_.window_end ? SlotKind::kCyclic : SlotKind::kTemporary;
        slots.push_back(add_slot(slot));
      }
    return slots;
  }

  // The steps before the period, as they were. What outlives the window is persistent.
  void add_recorded_steps() {
    for (const Block& block : lifetimes_.blocks) {
      if (block.birth >= period_begin_) break;
      Slot slot{block.size, kUnplaced, block.birth, std::min(block.death, plan_.window_end), block.role,
                SlotKind::kTemporary};
      if (block.death >= plan_.window_end) slot.kind = SlotKind::kPersistent;
      table(static_cast<std::int32_t>(block.step), block.role).push_back(add_slot(slot));
    }
  }

  // The step that holds the cut: before it copies of the period's blocks, after it the window's own.
  void add_first_pass(const std::vector<std::int32_t>& window) {
    const std::int32_t last = plan_.num_prologue - 1;
    for (std::size_t i = 0; i < period_.blocks.size(); ++i) {
      const PeriodBlock& block = period_.blocks[i];
      if (block.birth >= period_.cut) {
        table(last, block.role).push_back(window[i]);
        continue;
      }
      Slot slot{block.size, kUnplaced, period_begin_ + block.birth,
                std::min(period_begin_ + block.death, plan_.window_end), block.role, SlotKind::kUnplanned};
      if (block.planned) slot.kind = SlotKind::kTemporary;
      else slot.death = slot.birth + 1;
      table(last, block.role).push_back(add_slot(slot));
    }
  }

  // The step after the one that holds the cut uses the next copy.
  void add_period_tables(const std::vector<std::int32_t>& window) {
    for (std::int32_t turn = 0; turn < plan_.num_period; ++turn) {
      const auto copy = static_cast<std::size_t>((turn + 1) % plan_.num_period);
      for (std::size_t i = 0; i < period_.blocks.size(); ++i)
        table(plan_.num_prologue + turn, period_.blocks[i].role)
            .push_back(window[copy * period_.blocks.size() + i]);
    }
  }

  const Lifetimes& lifetimes_;
  const Period period_;
  Tick period_begin_ = 0;
  Plan plan_;
  std::vector<std::vector<std::int32_t>> tables_;
};

// A cyclic slot, and the block of the prologue that holds its place in the first pass, if there is one.
struct CyclicSlot {
  Slot* slot = nullptr;
  Slot* predecessor = nullptr;
};

// What is alive when the window opens is what the cyclic slots will hold at every later turn. Such a block gets
// the slot of its successor and, for placing and checking, ends where the window begins: there the slot's own
// wrapped part takes over.
void find_predecessors(Plan& plan, RoleIndex role, std::vector<CyclicSlot>& cyclic) {
  std::multimap<std::pair<Bytes, Tick>, CyclicSlot*> by_size_and_end;
  for (CyclicSlot& entry : cyclic) {
    const Tick wrapped_end = plan.window_begin + (entry.slot->death - plan.window_end);
    by_size_and_end.emplace(std::make_pair(entry.slot->size, wrapped_end), &entry);
  }
  for (Slot& slot : plan.slots) {
    if (slot.role != role || slot.kind != SlotKind::kTemporary || slot.birth >= plan.window_begin ||
        slot.death <= plan.window_begin)
      continue;
    const auto found = by_size_and_end.lower_bound({slot.size, slot.death});
    if (found == by_size_and_end.end() || found->first.first != slot.size) continue;
    found->second->predecessor = &slot;
    slot.death = plan.window_begin;
    by_size_and_end.erase(found);
  }
}

using CyclicOrder = bool (*)(const CyclicSlot&, const CyclicSlot&);

// Which cyclic slots lie lowest: what is best depends on whether the fronts or the backs of their lives are
// crowded, so each is tried until one meets the bound.
constexpr std::array<CyclicOrder, 4> kCyclicOrders = {
    [](const CyclicSlot& a, const CyclicSlot& b) { return a.slot->death - a.slot->birth > b.slot->death - b.slot->birth; },
    [](const CyclicSlot& a, const CyclicSlot& b) { return a.slot->birth < b.slot->birth; },
    [](const CyclicSlot& a, const CyclicSlot& b) { return a.slot->death > b.slot->death; },
    [](const CyclicSlot& a, const CyclicSlot& b) { return a.slot->death < b.slot->death; },
};

// Cyclic slots all live at the cut, so stacking them there wastes nothing; they stand as obstacles to the rest.
// Sets their offsets and those of their predecessors.
std::vector<Obstacle> stack_cyclic(const Plan& plan, const std::vector<CyclicSlot>& cyclic) {
  std::vector<Obstacle> obstacles;
  Bytes offset = 0;
  for (const CyclicSlot& entry : cyclic) {
    Slot& slot = *entry.slot;
    slot.offset = offset;
    offset += slot.size;
    obstacles.push_back({slot.birth, plan.window_end, slot.offset, slot.size});
    const Tick wrapped_end = plan.window_begin + (slot.death - plan.window_end);
    Tick wrapped_begin = plan.window_begin;
    if (entry.predecessor != nullptr) {
      entry.predecessor->offset = slot.offset;
      wrapped_begin = entry.predecessor->birth;
    }
    obstacles.push_back({wrapped_begin, wrapped_end, slot.offset, slot.size});
  }
  return obstacles;
}

void place_role(Plan& plan, RoleIndex role, const PlannerOptions& options) {
  std::vector<CyclicSlot> cyclic;
  for (Slot& slot : plan.slots)
    if (slot.role == role && slot.kind == SlotKind::kCyclic) cyclic.push_back({&slot, nullptr});
  find_predecessors(plan, role, cyclic);
  std::vector<Buffer> buffers;
  std::vector<Slot*> slots;
  std::set<const Slot*> stacked;
  for (const CyclicSlot& entry : cyclic) stacked.insert(entry.predecessor);
  for (Slot& slot : plan.slots) {
    if (slot.role != role || stacked.count(&slot) != 0 ||
        (slot.kind != SlotKind::kTemporary && slot.kind != SlotKind::kPersistent))
      continue;
    buffers.push_back({slot.birth, slot.death, slot.size});
    slots.push_back(&slot);
  }
  Placement best;
  std::vector<CyclicSlot> best_stack;
  for (const CyclicOrder order : kCyclicOrders) {
    std::stable_sort(cyclic.begin(), cyclic.end(), order);
    Placement placement = place(buffers, stack_cyclic(plan, cyclic), options);
    if (order != kCyclicOrders.front() && placement.peak_bytes >= best.peak_bytes) continue;
    best = std::move(placement);
    best_stack = cyclic;
    if (cyclic.size() < 2 || best.peak_bytes <= best.lower_bound_bytes) break;
  }
  stack_cyclic(plan, best_stack);
  for (std::size_t i = 0; i < slots.size(); ++i) slots[i]->offset = best.offsets[i];
  plan.arena_bytes.push_back(round_up(best.peak_bytes, kAlignment));
  plan.lower_bound_bytes.push_back(best.lower_bound_bytes);
}

}  // namespace

Plan build_plan(const Trace& trace, const PlanBuilderOptions& options) {
  const Lifetimes lifetimes = lifetimes_of(trace);
  Plan plan = TimelineBuilder(lifetimes, trace.num_roles, options.include_prologue).build();
  PlannerOptions planner = options.planner;
  planner.alignment = kAlignment;
  for (RoleIndex role = 0; role < plan.num_roles; ++role) place_role(plan, role, planner);
  check_plan(plan);
  return plan;
}

Plan without_prologue(const Plan& plan, const PlannerOptions& options) {
  Plan period;
  period.num_roles = plan.num_roles;
  period.num_period = plan.num_period;
  period.window_end = plan.window_end - plan.window_begin;
  std::vector<std::int32_t> new_index(plan.slots.size(), -1);
  const std::size_t first_cell = static_cast<std::size_t>(plan.num_prologue) * static_cast<std::size_t>(plan.num_roles);
  period.table_begin.push_back(0);
  for (std::size_t cell = first_cell; cell + 1 < plan.table_begin.size(); ++cell) {
    for (std::int64_t at = plan.table_begin[cell]; at < plan.table_begin[cell + 1]; ++at) {
      const auto old_slot = static_cast<std::size_t>(plan.table_slots[static_cast<std::size_t>(at)]);
      if (new_index[old_slot] < 0) {
        new_index[old_slot] = static_cast<std::int32_t>(period.slots.size());
        Slot slot = plan.slots[old_slot];
        slot.offset = kUnplaced;
        slot.birth -= plan.window_begin;
        slot.death -= plan.window_begin;
        period.slots.push_back(slot);
      }
      period.table_slots.push_back(new_index[old_slot]);
    }
    period.table_begin.push_back(static_cast<std::int64_t>(period.table_slots.size()));
  }
  PlannerOptions planner = options;
  planner.alignment = kAlignment;
  for (RoleIndex role = 0; role < period.num_roles; ++role) place_role(period, role, planner);
  check_plan(period);
  return period;
}

double agreement(const Plan& plan, std::int32_t table, const Trace& trace, std::int64_t step) {
  if (table < 0 || table >= plan.num_tables() || step < 0 || step >= trace.num_steps())
    throw Error("Comparing failed: table=" + std::to_string(table) + ", step=" + std::to_string(step) +
                ", must exist in plan and trace. Record the step first.");
  std::vector<Sequence> sequences;
  for (RoleIndex role = 0; role < plan.num_roles; ++role) {
    const auto cell = static_cast<std::size_t>(table * plan.num_roles + role);
    std::vector<Bytes> sizes;
    for (std::int64_t at = plan.table_begin[cell]; at < plan.table_begin[cell + 1]; ++at)
      sizes.push_back(plan.slots[static_cast<std::size_t>(plan.table_slots[static_cast<std::size_t>(at)])].size);
    sequences.emplace_back(std::move(sizes));
  }
  std::vector<SequenceMatcher> matchers(sequences.size());
  for (std::size_t role = 0; role < matchers.size(); ++role) matchers[role].begin(&sequences[role]);
  std::int64_t requests = 0;
  std::int64_t foretold = 0;
  for (auto i = static_cast<std::size_t>(trace.step_begin[static_cast<std::size_t>(step)]);
       i < static_cast<std::size_t>(trace.step_begin[static_cast<std::size_t>(step) + 1]); ++i) {
    const Event& event = trace.events[i];
    if (event.size <= 0) continue;
    ++requests;
    if (event.role >= 0 && event.role < plan.num_roles &&
        matchers[static_cast<std::size_t>(event.role)].match(round_up(event.size, kAlignment)) >= 0)
      ++foretold;
  }
  return requests == 0 ? 1.0 : static_cast<double>(foretold) / static_cast<double>(requests);
}

}  // namespace stalloc
