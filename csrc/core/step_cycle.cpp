#include "core/step_cycle.h"

#include <algorithm>
#include <utility>

namespace stalloc {
namespace {

constexpr std::int64_t kMostSteps = 10;            // of a cycle
constexpr std::int64_t kMostTicks = 200'000;       // of a cycle: more could not be planned beside the training
constexpr std::int64_t kLongestMemory = 24;        // steps
constexpr std::int64_t kMostUnsettledSteps = 3;    // at the start

using Counts = std::vector<std::int64_t>;  // by role

Counts num_requests(const Lifetimes& lifetimes, std::int64_t step, RoleIndex num_roles) {
  Counts counts(static_cast<std::size_t>(num_roles), 0);
  for (std::size_t i = lifetimes.begin_of(step); i < lifetimes.begin_of(step + 1); ++i)
    ++counts[static_cast<std::size_t>(lifetimes.blocks[i].role)];
  return counts;
}

bool repeats_after(const std::vector<Counts>& steps, std::size_t num_steps) {
  return steps.size() >= 2 * num_steps && std::equal(steps.begin() + static_cast<std::ptrdiff_t>(num_steps), steps.end(), steps.begin());
}

// The first step of cycle `cycle`, counted so that the last complete step ends one.
std::int64_t first_step(const Lifetimes& lifetimes, std::int64_t steps_a_cycle, std::int64_t cycle) {
  const std::int64_t rest = lifetimes.num_steps % steps_a_cycle;
  return std::max<std::int64_t>(cycle * steps_a_cycle - (rest == 0 ? 0 : steps_a_cycle - rest), 0);
}

}  // namespace

std::int64_t steps_a_cycle(const Lifetimes& lifetimes, RoleIndex num_roles) {
  for (std::int64_t unsettled = 1; unsettled <= kMostUnsettledSteps; ++unsettled) {
    std::vector<Counts> steps;
    for (std::int64_t step = std::max(unsettled, lifetimes.num_steps - kLongestMemory); step < lifetimes.num_steps; ++step)
      steps.push_back(num_requests(lifetimes, step, num_roles));
    for (std::int64_t length = 1; length <= kMostSteps; ++length) {
      if (!repeats_after(steps, static_cast<std::size_t>(length))) continue;
      const std::size_t last = lifetimes.begin_of(lifetimes.num_steps);
      const std::size_t begin = lifetimes.begin_of(lifetimes.num_steps - length);
      return static_cast<std::int64_t>(last - begin) <= kMostTicks ? length : 1;
    }
  }
  return 1;
}

Lifetimes in_cycles(const Lifetimes& lifetimes, std::int64_t steps_a_cycle) {
  if (steps_a_cycle == 1) return lifetimes;
  Lifetimes cycles = lifetimes;
  cycles.step_begin.clear();
  for (std::int64_t step = 0; step < lifetimes.num_steps; step = first_step(lifetimes, steps_a_cycle, static_cast<std::int64_t>(cycles.step_begin.size())))
    cycles.step_begin.push_back(lifetimes.step_begin[static_cast<std::size_t>(step)]);
  cycles.num_steps = static_cast<std::int64_t>(cycles.step_begin.size());
  cycles.step_begin.push_back(lifetimes.step_begin[static_cast<std::size_t>(lifetimes.num_steps)]);
  return cycles;
}

void cut_tables(Plan& plan, const Lifetimes& lifetimes, std::int64_t steps_a_cycle) {
  if (steps_a_cycle == 1) return;
  const std::int64_t base_cycle = plan.num_prologue;
  std::vector<std::int64_t> at(plan.table_begin.begin(), plan.table_begin.end() - 1);  // by table and role: the next entry
  std::vector<std::int32_t> slots;
  std::vector<std::int64_t> begin{0};
  for (std::int32_t table = 0; table < plan.num_tables(); ++table) {
    const std::int64_t cycle = std::min<std::int64_t>(table, base_cycle);
    const std::int64_t end = first_step(lifetimes, steps_a_cycle, cycle + 1);
    for (std::int64_t step = first_step(lifetimes, steps_a_cycle, cycle); step < end; ++step) {
      const Counts counts = num_requests(lifetimes, step, plan.num_roles);
      for (RoleIndex role = 0; role < plan.num_roles; ++role) {
        std::int64_t& next = at[static_cast<std::size_t>(table * plan.num_roles + role)];
        const auto from = plan.table_slots.begin() + next;
        next += counts[static_cast<std::size_t>(role)];
        slots.insert(slots.end(), from, plan.table_slots.begin() + next);
        begin.push_back(static_cast<std::int64_t>(slots.size()));
      }
    }
  }
  plan.num_prologue = static_cast<std::int32_t>(first_step(lifetimes, steps_a_cycle, base_cycle));
  plan.num_period *= static_cast<std::int32_t>(steps_a_cycle);
  plan.table_slots = std::move(slots);
  plan.table_begin = std::move(begin);
}

}  // namespace stalloc
