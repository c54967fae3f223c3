#include "core/plan_builder.h"

#include <algorithm>
#include <utility>

#include "core/dynamic_room.h"
#include "core/lifetimes.h"
#include "core/period.h"
#include "core/sequence.h"
#include "core/step_cursor.h"
#include "core/step_cycle.h"
#include "core/timeline.h"

namespace stalloc {
namespace {

// Turns a recorded run into slots and tables, without offsets.
class SlotBuilder {
 public:
  SlotBuilder(const Lifetimes& lifetimes, RoleIndex num_roles)
      : lifetimes_(lifetimes), period_(find_period(lifetimes, num_roles)), timeline_(lifetimes, period_, num_roles) {
    plan_.num_roles = num_roles;
    plan_.num_period = period_.num_copies;
    plan_.num_prologue = static_cast<std::int32_t>(period_.base_step);
    plan_.variable_bytes = period_.variable_bytes;
    plan_.window_begin = timeline_.num_construction();
    plan_.window_end = plan_.window_begin + timeline_.turn_ticks();
    tables_.resize(static_cast<std::size_t>(plan_.num_tables()) * static_cast<std::size_t>(num_roles));
  }

  Plan build() {
    add_period();
    for (std::int32_t step = 0; step < plan_.num_prologue; ++step) add_first_step(step);
    turn_window(least_live_tick());
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

  // Slot copy * num_ticks + tick is that of the period's tick in that step of the turn. Until turn_window() births
  // lie in [window_begin, window_end) with the window beginning at the start of a step.
  void add_period() {
    for (int copy = 0; copy < period_.num_copies; ++copy)
      for (const PeriodBlock& block : period_.blocks) {
        Slot slot;
        slot.size = std::max(block.size, kAlignment);
        slot.model = block.model;
        slot.role = block.role;
        slot.birth = plan_.window_begin + timeline_.period_tick(copy, block.birth);
        slot.death = slot.birth + 1;
        if (block.planned) {
          slot.kind = SlotKind::kTemporary;
          slot.death = plan_.window_begin + timeline_.period_tick(copy, block.death);
        } else {
          slot.death = block.dynamic ? plan_.window_begin + timeline_.period_tick(copy, dynamic_end(period_, block.death))
                                     : slot.birth + timeline_.turn_ticks();
          if (block.size == kUnknownSize) slot.model.base = -1;
        }
        table(plan_.num_prologue + copy, block.role).push_back(add_slot(slot));
      }
    add_room();
  }

  void add_room() {
    for (int copy = 0; copy < period_.num_copies; ++copy)
      for (const DynamicRoom& room : period_.rooms) {
        Slot slot;
        slot.size = room.size;
        slot.model = room.model;
        slot.role = room.role;
        slot.kind = SlotKind::kRoom;
        slot.birth = plan_.window_begin + timeline_.period_tick(copy, room.birth);
        slot.death = plan_.window_begin + timeline_.period_tick(copy, room.death);
        add_slot(slot);
      }
  }

  // A recorded step before the period's: the period's slots where it did the same, else slots of its own.
  void add_first_step(std::int32_t step) {
    const StepTrack& track = timeline_.track(step);
    const std::size_t begin = lifetimes_.begin_of(step);
    for (std::size_t i = 0; i < track.period_tick.size(); ++i) {
      const Block& block = lifetimes_.blocks[begin + i];
      if (track.period_tick[i] >= 0) {
        table(step, block.role)
            .push_back(static_cast<std::int32_t>(track.copy * period_.num_ticks + track.period_tick[i]));
        continue;
      }
      const bool in_construction = i < track.num_construction;
      table(step, block.role).push_back(add_slot(in_construction ? construction_slot(block) : extra_slot(step, i)));
    }
  }

  // What construction leaves alive is taken to live for ever: it is small where it does not.
  Slot construction_slot(const Block& block) const {
    Slot slot = slot_of(block);
    slot.birth = block.birth;
    slot.death = block.death;
    if (block.death > plan_.window_begin) {
      slot.death = plan_.window_end;
      slot.kind = SlotKind::kPersistent;
    }
    return slot;
  }

  Slot extra_slot(std::int64_t step, std::size_t allocation) const {
    const Block& block = lifetimes_.blocks[lifetimes_.begin_of(step) + allocation];
    Slot slot = slot_of(block);
    const Tick birth = timeline_.extra_birth(step, allocation);
    Tick death = timeline_.moment(block.death);
    if (block.used_elsewhere && death != kNever) death += period_.num_ticks / kStreamDelayShare;
    if (death == kNever || death - birth >= timeline_.turn_ticks()) {
      slot.birth = plan_.window_begin;
      slot.death = plan_.window_end;
      slot.kind = SlotKind::kPersistent;
      return slot;
    }
    const Tick turns = birth - within_turn(birth);
    slot.birth = plan_.window_begin + birth - turns;
    slot.death = plan_.window_begin + std::max(death, birth + 1) - turns;
    // Most of it is routed, and the rooms are kept for that: places of its own would be kept beside them.
    if (period_.varies) slot.kind = SlotKind::kUnplanned;
    return slot;
  }

  static Slot slot_of(const Block& block) {
    Slot slot;
    slot.size = block.size();
    slot.role = block.role;
    slot.kind = SlotKind::kTemporary;
    return slot;
  }

  Tick within_turn(Tick tick) const {
    const Tick turn = timeline_.turn_ticks();
    return ((tick % turn) + turn) % turn;
  }

  // The tick of the turn at which the fewest bytes are alive that do not live for ever.
  Tick least_live_tick() const {
    const Tick turn = timeline_.turn_ticks();
    std::vector<Bytes> change(static_cast<std::size_t>(turn) + 1, 0);
    const auto add = [&](Tick from, Tick to, Bytes size) {  // crosses the cuts c with from < c < to
      change[static_cast<std::size_t>(std::clamp<Tick>(from + 1, 0, turn))] += size;
      change[static_cast<std::size_t>(std::clamp<Tick>(to, from + 1, turn))] -= size;
    };
    for (const Slot& slot : plan_.slots) {
      if (slot.kind == SlotKind::kPersistent || slot.kind == SlotKind::kUnplanned || slot.birth < plan_.window_begin) continue;
      const Tick birth = slot.birth - plan_.window_begin;
      const Tick death = slot.death - plan_.window_begin;
      add(birth, death, slot.size);
      if (death > turn) add(-1, death - turn, slot.size);
    }
    Bytes live = 0;
    Bytes least = 0;
    Tick cut = 0;
    for (Tick tick = 0; tick < turn; ++tick) {
      live += change[static_cast<std::size_t>(tick)];
      if (tick == 0 || live < least) {
        least = live;
        cut = tick;
      }
    }
    return cut;
  }

  // Lets the window begin at `cut`. What then passes its end is cyclic.
  void turn_window(Tick cut) {
    for (Slot& slot : plan_.slots) {
      if (slot.kind == SlotKind::kPersistent || slot.birth < plan_.window_begin) continue;
      const Tick length = slot.death - slot.birth;
      slot.birth = plan_.window_begin + within_turn(slot.birth - plan_.window_begin - cut);
      slot.death = slot.birth + length;
      if (slot.death > plan_.window_end && slot.kind == SlotKind::kTemporary) slot.kind = SlotKind::kCyclic;
    }
    split_rooms();
  }

  // No request waits for a room as a whole: one that crosses the cut becomes two.
  void split_rooms() {
    for (std::size_t i = 0; i < plan_.slots.size(); ++i) {
      if (plan_.slots[i].kind != SlotKind::kRoom || plan_.slots[i].death <= plan_.window_end) continue;
      Slot rest = plan_.slots[i];
      rest.birth = plan_.window_begin;
      rest.death -= plan_.window_end - plan_.window_begin;
      plan_.slots[i].death = plan_.window_end;
      plan_.slots.push_back(rest);
    }
  }

  const Lifetimes& lifetimes_;
  const Period period_;
  const Timeline timeline_;
  Plan plan_;
  std::vector<std::vector<std::int32_t>> tables_;
};

}  // namespace

Plan build_plan(const Trace& trace, const PlannerOptions& options, bool shares_spaces) {
  const Lifetimes lifetimes = lifetimes_of(trace);
  std::int64_t cycle = steps_a_cycle(lifetimes, trace.num_roles);
  // Loops over experts make steps of two lengths in turn by chance.
  if (cycle > 1 && is_routed(find_period(in_cycles(lifetimes, cycle), trace.num_roles))) cycle = 1;
  Plan plan = SlotBuilder(in_cycles(lifetimes, cycle), trace.num_roles).build();
  cut_tables(plan, lifetimes, cycle);
  plan.role_space = make_role_spaces(plan.num_roles, shares_spaces);
  place_slots(plan, options);
  check_plan(plan);
  return plan;
}

Plan without_prologue(const Plan& plan, const PlannerOptions& options) {
  Plan period;
  period.num_roles = plan.num_roles;
  period.num_period = plan.num_period;
  period.role_space = plan.role_space;
  period.variable_bytes = plan.variable_bytes;
  period.window_end = plan.window_end - plan.window_begin;
  std::vector<std::int32_t> new_index(plan.slots.size(), -1);
  const auto keep = [&](std::size_t old_slot) {
    if (new_index[old_slot] >= 0) return new_index[old_slot];
    period.slots.push_back(plan.slots[old_slot]);
    period.slots.back().birth -= plan.window_begin;
    period.slots.back().death -= plan.window_begin;
    return new_index[old_slot] = static_cast<std::int32_t>(period.slots.size() - 1);
  };
  period.table_begin.push_back(0);
  for (std::size_t cell = static_cast<std::size_t>(plan.num_prologue * plan.num_roles); cell + 1 < plan.table_begin.size(); ++cell) {
    for (std::int64_t at = plan.table_begin[cell]; at < plan.table_begin[cell + 1]; ++at)
      period.table_slots.push_back(keep(static_cast<std::size_t>(plan.table_slots[static_cast<std::size_t>(at)])));
    period.table_begin.push_back(static_cast<std::int64_t>(period.table_slots.size()));
  }
  for (std::size_t slot = 0; slot < plan.slots.size(); ++slot)
    if (plan.slots[slot].kind == SlotKind::kRoom) keep(slot);
  place_slots(period, options);
  check_plan(period);
  return period;
}

Plan resized(const Plan& plan, const std::vector<Bytes>& variable_bytes, const PlannerOptions& options,
             const Standing& standing) {
  if (variable_bytes.size() != plan.variable_bytes.size())
    throw Error("Resizing failed: num_variables=" + std::to_string(variable_bytes.size()) +
                ", must be as many as the plan has. Take the values from the plan's engine.");
  Plan larger = plan;
  larger.variable_bytes = variable_bytes;
  for (Slot& slot : larger.slots)
    if (slot.model.variable != kNoVariable)
      slot.size = std::max(slot.model.bytes_at(variable_bytes[static_cast<std::size_t>(slot.model.variable)]), kAlignment);
  place_slots(larger, options, standing);
  check_plan(larger);
  return larger;
}

namespace {

// Follows a recorded step. The number of requests, and of those foretold.
std::pair<std::int64_t, std::int64_t> follow(const Trace& trace, std::int64_t step, StepCursor& cursor) {
  std::int64_t requests = 0;
  std::int64_t foretold = 0;
  for (auto i = static_cast<std::size_t>(trace.step_begin[static_cast<std::size_t>(step)]);
       i < static_cast<std::size_t>(trace.step_begin[static_cast<std::size_t>(step) + 1]); ++i) {
    const Event& event = trace.events[i];
    if (event.size <= 0) continue;
    ++requests;
    if (cursor.match(event.role, event.size) >= 0) ++foretold;
  }
  return {requests, foretold};
}

}  // namespace

std::vector<Bytes> met_variables(const Plan& plan, const Trace& trace) {
  std::vector<Bytes> met(plan.variable_bytes.size(), 0);
  if (met.empty()) return met;
  std::vector<StepScript> scripts;
  for (std::int32_t table = 0; table < plan.num_tables(); ++table) scripts.emplace_back(plan, table);
  StepCursor cursor;
  for (const StepScript& script : scripts) cursor.make_room(script);
  for (std::int64_t step = 0; step < trace.num_steps(); ++step) {
    cursor.begin(&scripts[static_cast<std::size_t>(plan.table_of(step))]);
    follow(trace, step, cursor);
    for (std::size_t i = 0; i < met.size(); ++i)
      if (cursor.is_borne_out(i)) met[i] = std::max(met[i], cursor.trusted_value(i));
  }
  // What nothing bears out is led by another one, or no longer than it was planned for.
  std::vector<Bytes> own = plan.needed_variables(met, std::vector<bool>(met.size(), false));
  for (std::size_t i = 0; i < met.size(); ++i)
    if (met[i] > 0) own[i] = met[i];
  return own;
}

double agreement(const Plan& plan, std::int32_t table, const Trace& trace, std::int64_t step) {
  if (table < 0 || table >= plan.num_tables() || step < 0 || step >= trace.num_steps())
    throw Error("Comparing failed: table=" + std::to_string(table) + ", step=" + std::to_string(step) +
                ", must exist in plan and trace. Record the step first.");
  const StepScript script(plan, table);
  StepCursor cursor;
  cursor.make_room(script);
  cursor.begin(&script);
  const auto [requests, foretold] = follow(trace, step, cursor);
  return requests == 0 ? 1.0 : static_cast<double>(foretold) / static_cast<double>(requests);
}

}  // namespace stalloc
