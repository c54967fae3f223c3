#include "core/plan_builder.h"
#include "fuzz/program.h"
#include "fuzz/targets.h"

namespace stalloc {
namespace {

constexpr Bytes kLargestArena = Bytes{1} << 30;  // a larger one costs time and shows nothing

Slot slot_of(Input& input) {
  Slot slot;
  slot.size = input.aligned();
  slot.offset = input.aligned();
  slot.birth = input.number();
  slot.death = input.byte() % 4 == 0 ? input.number() : slot.birth + 1 + input.byte() % 64;
  slot.role = static_cast<RoleIndex>(input.byte() % 3);
  slot.kind = static_cast<SlotKind>(input.byte() % 6);
  if (input.byte() % 2 == 0) return slot;
  slot.model = {input.real(), input.real(), static_cast<std::int32_t>(input.byte() % 4) - 1, input.byte() % 4 == 0};
  return slot;
}

Plan plan_of(Input& input) {
  Plan plan;
  plan.num_roles = static_cast<RoleIndex>(input.byte() % 4);
  plan.num_prologue = input.byte() % 3;
  plan.num_period = input.byte() % 4;
  plan.window_begin = input.number();
  plan.window_end = input.byte() % 4 == 0 ? input.number() : plan.window_begin + input.byte();
  for (int i = input.byte() % 4; i > 0; --i) plan.variable_bytes.push_back(input.number());
  for (int i = input.byte() % 24; i > 0; --i) plan.slots.push_back(slot_of(input));
  for (RoleIndex role = 0; role < plan.num_roles; ++role) {
    plan.arena_bytes.push_back(input.byte() % 8 == 0 ? input.number() : input.aligned() + input.aligned() % (Bytes{1} << 20));
    plan.lower_bound_bytes.push_back(input.aligned());
  }
  plan.role_space = make_role_spaces(plan.num_roles, input.byte() % 3 == 0);
  if (input.byte() % 16 == 0) plan.role_space.push_back(static_cast<RoleIndex>(input.number()));
  for (RoleIndex role = 0; role < plan.num_roles && input.byte() % 8 != 0; ++role)
    if (plan.role_space[static_cast<std::size_t>(role)] != role) plan.arena_bytes[static_cast<std::size_t>(role)] = 0;
  // In most inputs the tables name each slot once, in its role.
  plan.table_begin.push_back(0);
  for (std::int32_t table = 0; table < plan.num_tables(); ++table)
    for (RoleIndex role = 0; role < plan.num_roles; ++role) {
      for (std::size_t i = 0; i < plan.slots.size(); ++i)
        if (plan.slots[i].role == role && input.byte() % 4 != 0) plan.table_slots.push_back(static_cast<std::int32_t>(i));
      plan.table_begin.push_back(static_cast<std::int64_t>(plan.table_slots.size()));
    }
  if (input.byte() % 16 == 0) plan.table_begin.push_back(input.number());
  if (input.byte() % 16 == 0) plan.table_slots.push_back(static_cast<std::int32_t>(input.number()));
  return plan;
}

}  // namespace

void fuzz_plan(const std::uint8_t* data, std::size_t size) {
  Input input(data, size);
  auto plan = std::make_shared<Plan>(plan_of(input));
  std::vector<std::shared_ptr<const Plan>> plans{plan};
  try {
    check_plan(*plan);
  } catch (const Error&) {
    return;
  }
  for (const Bytes bytes : plan->arena_bytes)
    if (bytes > kLargestArena) return;
  try {
    PlannerOptions options;
    options.deadline_s = 0;
    const auto shorter = std::make_shared<const Plan>(without_prologue(*plan, options));
    check_plan(*shorter);
    plans.push_back(shorter);
    std::vector<Bytes> values = plan->variable_bytes;
    for (Bytes& value : values) value = 1 + input.below(60'000);
    const auto larger = std::make_shared<const Plan>(resized(*plan, values, options));
    check_plan(*larger);
    plans.push_back(larger);
  } catch (const Error&) {
    // Too large to be placed anew.
  }
  for (const auto& each : plans)
    if (each->total_arena_bytes() > kLargestArena) return;
  FuzzProgram program;
  program.engine().arm(plan, 0);
  while (!input.is_empty()) {
    if (input.byte() % 2 == 0) {
      program.act(input, plans);
    } else if (!plan->table_slots.empty()) {  // what the plan foretells, or nearly
      const auto at = static_cast<std::size_t>(input.below(static_cast<std::int64_t>(plan->table_slots.size())));
      const Slot& slot = plan->slots[static_cast<std::size_t>(plan->table_slots[at])];
      program.allocate(slot.size - input.byte(), static_cast<StreamHandle>(slot.role));
    }
    program.check();
  }
}

}  // namespace stalloc
