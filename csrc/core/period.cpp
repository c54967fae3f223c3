#include "core/period.h"

#include <algorithm>

#include "core/sequence.h"

namespace stalloc {
namespace {

struct StepRange {
  std::size_t begin = 0;  // indices of lifetimes.blocks; ticks are the same numbers
  std::size_t end = 0;
};

StepRange range_of(const Lifetimes& lifetimes, std::int64_t step) {
  return {static_cast<std::size_t>(lifetimes.step_begin[static_cast<std::size_t>(step)]),
          static_cast<std::size_t>(lifetimes.step_begin[static_cast<std::size_t>(step) + 1])};
}

// For each allocation of `next`, the tick within `base` whose request it repeats, or -1.
std::vector<Tick> align(const Lifetimes& lifetimes, StepRange base, StepRange next, RoleIndex num_roles) {
  std::vector<std::vector<Bytes>> sizes(static_cast<std::size_t>(num_roles));
  std::vector<std::vector<Tick>> ticks(static_cast<std::size_t>(num_roles));
  for (std::size_t i = base.begin; i < base.end; ++i) {
    const auto role = static_cast<std::size_t>(lifetimes.blocks[i].role);
    sizes[role].push_back(lifetimes.blocks[i].size);
    ticks[role].push_back(static_cast<Tick>(i - base.begin));
  }
  std::vector<Sequence> sequences;
  for (auto& role_sizes : sizes) sequences.emplace_back(std::move(role_sizes));
  std::vector<SequenceMatcher> matchers(static_cast<std::size_t>(num_roles));
  for (std::size_t role = 0; role < matchers.size(); ++role) matchers[role].begin(&sequences[role]);
  std::vector<Tick> aligned;
  aligned.reserve(next.end - next.begin);
  for (std::size_t i = next.begin; i < next.end; ++i) {
    const auto role = static_cast<std::size_t>(lifetimes.blocks[i].role);
    const std::int64_t position = matchers[role].match(lifetimes.blocks[i].size);
    aligned.push_back(position < 0 ? -1 : ticks[role][static_cast<std::size_t>(position)]);
  }
  return aligned;
}

// Translates ticks of the second step into ticks of the first: by the last aligned allocation before them.
std::vector<Tick> translation(const std::vector<Tick>& aligned) {
  std::vector<Tick> base_tick(aligned.size() + 1, 0);
  for (std::size_t i = 0; i < aligned.size(); ++i)
    base_tick[i + 1] = aligned[i] < 0 ? base_tick[i] : std::max(base_tick[i], aligned[i] + 1);
  return base_tick;
}

void choose_cut(Period& period) {
  const Tick ticks = period.num_ticks;
  std::vector<Bytes> change(static_cast<std::size_t>(ticks) + 1, 0);
  // A block that is alive both at the cut and one step on counts twice, as it does on the device.
  const auto add = [&](Tick from, Tick to, Bytes size) {  // alive at the cuts c with from < c < to
    if (from + 1 >= to) return;
    change[static_cast<std::size_t>(std::min(from + 1, ticks))] += size;
    change[static_cast<std::size_t>(std::min(to, ticks))] -= size;
  };
  for (const PeriodBlock& block : period.blocks) {
    if (!block.planned) continue;
    add(block.birth, block.death, block.size);
    if (block.death > ticks) add(-1, block.death - ticks, block.size);
  }
  Bytes live = 0;
  Bytes least = 0;
  for (Tick tick = 0; tick < ticks; ++tick) {
    live += change[static_cast<std::size_t>(tick)];
    if (tick == 0 || live < least) {
      least = live;
      period.cut = tick;
    }
  }
}

}  // namespace

Period find_period(const Lifetimes& lifetimes, RoleIndex num_roles) {
  if (lifetimes.num_steps < 2)
    throw Error("Planning failed: num_steps=" + std::to_string(lifetimes.num_steps) +
                ", a period needs two complete steps. Record more steps.");
  Period period;
  period.base_step = lifetimes.num_steps - 2;
  const StepRange base = range_of(lifetimes, period.base_step);
  const StepRange next = range_of(lifetimes, period.base_step + 1);
  period.num_ticks = static_cast<Tick>(base.end - base.begin);
  const std::vector<Tick> aligned = align(lifetimes, base, next, num_roles);
  const std::vector<Tick> base_tick = translation(aligned);
  for (std::size_t i = base.begin; i < base.end; ++i) {
    const Block& block = lifetimes.blocks[i];
    PeriodBlock entry{block.size, block.role, static_cast<Tick>(i - base.begin), 0, block.position, false,
                      block.used_elsewhere};
    if (block.death <= static_cast<Tick>(base.end)) {
      entry.death = block.death - static_cast<Tick>(base.begin);
    } else if (block.death <= static_cast<Tick>(next.end)) {
      entry.death = period.num_ticks + base_tick[static_cast<std::size_t>(block.death) - next.begin];
    }
    period.blocks.push_back(entry);
  }
  for (const Tick tick : aligned)
    if (tick >= 0) {
      PeriodBlock& block = period.blocks[static_cast<std::size_t>(tick)];
      block.planned = block.death > block.birth;
      if (block.planned && block.death - block.birth > period.num_ticks) period.num_copies = 2;
    }
  choose_cut(period);
  return period;
}

}  // namespace stalloc
