#include "core/period.h"

#include <algorithm>
#include <unordered_set>

#include "core/alignment.h"
#include "core/sequence.h"
#include "core/size_models.h"
#include "core/step_alignment.h"
#include "core/step_order.h"
#include "core/step_values.h"
#include "core/varying_period.h"

namespace stalloc {
namespace {

constexpr std::int64_t kMaxFittedSteps = 8;
constexpr Bytes kSmallBytes = Bytes{1} << 20;

// The requests of one step, as ticks from its start, by role. Two steps with as many of each are compared role by role:
// how roles interleave is not told where each has its thread.
using TicksByRole = std::vector<std::vector<Tick>>;

TicksByRole ticks_by_role(const Lifetimes& lifetimes, std::int64_t step, RoleIndex num_roles) {
  TicksByRole ticks(static_cast<std::size_t>(num_roles));
  const std::size_t begin = lifetimes.begin_of(step);
  for (std::size_t i = begin; i < lifetimes.begin_of(step + 1); ++i)
    ticks[static_cast<std::size_t>(lifetimes.blocks[i].role)].push_back(static_cast<Tick>(i - begin));
  return ticks;
}

bool same_shape(const TicksByRole& a, const TicksByRole& b) {
  return std::equal(a.begin(), a.end(), b.begin(), [](const auto& x, const auto& y) { return x.size() == y.size(); });
}

// The last steps that have the shape of the last one, oldest first; at least the last.
std::vector<TicksByRole> steps_of_one_shape(const Lifetimes& lifetimes, RoleIndex num_roles) {
  std::vector<TicksByRole> steps;
  for (std::int64_t step = lifetimes.num_steps - 1; step >= 0; --step) {
    if (lifetimes.num_steps - step > kMaxFittedSteps) break;
    TicksByRole ticks = ticks_by_role(lifetimes, step, num_roles);
    if (!steps.empty() && !same_shape(ticks, steps.back())) break;
    steps.push_back(std::move(ticks));
  }
  std::reverse(steps.begin(), steps.end());
  return steps;
}

// The last steps, oldest first, without the first one of all where there are others: it constructs.
std::vector<std::int64_t> last_steps(const Lifetimes& lifetimes) {
  std::vector<std::int64_t> steps;
  for (std::int64_t step = std::max<std::int64_t>(1, lifetimes.num_steps - kMaxFittedSteps); step < lifetimes.num_steps; ++step)
    steps.push_back(step);
  return steps;
}

// The one that the others differ from least, the latest of these; not the last, whose blocks' frees are not all known.
std::int64_t most_typical_step(const Lifetimes& lifetimes, const std::vector<std::int64_t>& steps, RoleIndex num_roles) {
  std::vector<std::int64_t> in_common(steps.size(), 0);
  const auto num_requests = [&](std::int64_t step) {
    return static_cast<std::int64_t>(lifetimes.begin_of(step + 1) - lifetimes.begin_of(step));
  };
  for (std::size_t a = 0; a < steps.size(); ++a)
    for (std::size_t b = a + 1; b < steps.size(); ++b) {
      const std::vector<Tick> pairs = pair_steps(lifetimes, steps[a], steps[b], num_roles);
      const auto paired = std::count_if(pairs.begin(), pairs.end(), [](Tick tick) { return tick >= 0; });
      in_common[a] += 2 * paired - num_requests(steps[a]);
      in_common[b] += 2 * paired - num_requests(steps[b]);
    }
  std::size_t typical = 0;
  for (std::size_t i = 0; i + 1 < steps.size(); ++i)
    if (in_common[i] >= in_common[typical]) typical = i;
  return steps[typical];
}

// When a block of `step` is freed, in ticks from that step's start; 0 when it outlives the step after it. Only right
// where that next step has the same shape.
Tick relative_death(const Lifetimes& lifetimes, std::int64_t step, const Block& block) {
  const auto begin = static_cast<Tick>(lifetimes.begin_of(step));
  return block.death <= static_cast<Tick>(lifetimes.begin_of(step + 2)) ? block.death - begin : 0;
}

// The same moment in the order of `base`: before the request of the block's role that came next.
Tick death_in_order(const TicksByRole& base, const TicksByRole& step, const TicksByRole& next, RoleIndex role,
                    Tick num_ticks, Tick death) {
  if (death == 0 || (step == base && next == base)) return death;
  const auto index = static_cast<std::size_t>(role);
  const auto& own = death <= num_ticks ? step[index] : next[index];
  const Tick within = death <= num_ticks ? death : death - num_ticks;
  const auto at = static_cast<std::size_t>(std::lower_bound(own.begin(), own.end(), within) - own.begin());
  return (death <= num_ticks ? 0 : num_ticks) + (at < own.size() ? base[index][at] : num_ticks);
}

// Whether so many of a step's requests are exceptions to what holds for it.
bool are_few(std::size_t count, const Period& period) {
  constexpr std::size_t kFew = 8;
  constexpr std::size_t kLeastShare = 64;
  return count <= std::max(kFew, period.blocks.size() / kLeastShare);
}

// Blocks, by tick, that outlive the next step too. What every step asks for anew is freed some time, else memory would grow
// with each step: a few large ones live until their second successor's birth at most, as what hangs on a loss that the loop
// keeps. Of many nothing is known.
void let_outlive(const std::vector<Tick>& outliving, Period& period) {
  if (!are_few(outliving.size(), period)) return;
  for (const Tick tick : outliving) {
    PeriodBlock& block = period.blocks[static_cast<std::size_t>(tick)];
    block.death = block.birth + 2 * period.num_ticks;
  }
}

void fit_same_shape(const Lifetimes& lifetimes, const std::vector<TicksByRole>& steps, Period& period) {
  const TicksByRole& base = steps[steps.size() - 2];
  const std::int64_t first = lifetimes.num_steps - static_cast<std::int64_t>(steps.size());
  std::vector<std::vector<Bytes>> sizes(static_cast<std::size_t>(period.num_ticks));
  std::vector<Tick> outliving;
  for (RoleIndex role = 0; role < static_cast<RoleIndex>(base.size()); ++role) {
    std::vector<std::vector<Tick>> ticks;  // of each step, in the order of the base step
    for (std::size_t j = 0; j < steps.size(); ++j)
      ticks.push_back(in_order_of(lifetimes, {lifetimes.begin_of(period.base_step), base[static_cast<std::size_t>(role)]},
                                  {lifetimes.begin_of(first + static_cast<std::int64_t>(j)), steps[j][static_cast<std::size_t>(role)]}));
    for (std::size_t at = 0; at < base[static_cast<std::size_t>(role)].size(); ++at) {
      const Tick tick = base[static_cast<std::size_t>(role)][at];
      PeriodBlock& block = period.blocks[static_cast<std::size_t>(tick)];
      for (std::size_t j = 0; j < steps.size(); ++j) {
        const std::int64_t step = first + static_cast<std::int64_t>(j);
        const Tick own = ticks[j][at];
        const Block& seen = lifetimes.blocks[lifetimes.begin_of(step) + static_cast<std::size_t>(own)];
        sizes[static_cast<std::size_t>(tick)].push_back(seen.requested);
        if (j + 1 == steps.size()) continue;
        block.used_elsewhere |= seen.used_elsewhere;
        const Tick death = death_in_order(base, steps[j], steps[j + 1], role, period.num_ticks,
                                          relative_death(lifetimes, step, seen));
        if (death > 0) {
          block.death = std::max(block.death, death);
        } else if (step == period.base_step) {
          block.death = 0;
          if (seen.size() >= kSmallBytes) outliving.push_back(tick);
        }
      }
    }
  }
  let_outlive(outliving, period);
  const SizeModels fitted = fit_sizes(sizes);
  period.variable_bytes = fitted.variable_bytes;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    PeriodBlock& block = period.blocks[i];
    block.model = fitted.models[i];
    const std::int32_t variable = block.model.variable;
    const Bytes largest = round_up(*std::max_element(sizes[i].begin(), sizes[i].end()), kAlignment);
    block.size = variable == kNoVariable
                     ? largest
                     : std::max(largest, block.model.bytes_at(fitted.variable_bytes[static_cast<std::size_t>(variable)]));
    block.planned = fitted.is_known[i] && block.death > block.birth;
    if (!fitted.is_known[i]) block.size = kUnknownSize;
  }
}

// The last two steps differ in shape: what the second repeats of the first, by size, is the period.
void match_two_steps(const Lifetimes& lifetimes, RoleIndex num_roles, Period& period) {
  const std::vector<Tick> aligned = align_step(lifetimes, period.base_step + 1, period, num_roles);
  std::vector<Tick> base_tick(aligned.size() + 1, 0);  // of the first step, by ticks of the second
  for (std::size_t i = 0; i < aligned.size(); ++i)
    base_tick[i + 1] = aligned[i] < 0 ? base_tick[i] : std::max(base_tick[i], aligned[i] + 1);
  const std::size_t next = lifetimes.begin_of(period.base_step + 1);
  for (const Tick tick : aligned) {
    if (tick < 0) continue;
    PeriodBlock& block = period.blocks[static_cast<std::size_t>(tick)];
    const Block& seen = lifetimes.blocks[lifetimes.begin_of(period.base_step) + static_cast<std::size_t>(tick)];
    const Tick death = relative_death(lifetimes, period.base_step, seen);
    block.death = death <= period.num_ticks
                      ? death
                      : period.num_ticks + base_tick[static_cast<std::size_t>(seen.death) - next];
    block.planned = block.death > block.birth;
  }
}

// What the step asks for there; -1 where its variable's value is not known.
Bytes expected_bytes(const PeriodBlock& block, const std::vector<Bytes>& values) {
  if (block.model.variable == kNoVariable) return block.size > 0 ? block.size : -1;
  const Bytes value = values[static_cast<std::size_t>(block.model.variable)];
  return value > 0 ? block.model.bytes_at(value) : -1;
}

// Pairs the requests of one role by size. Sizes that are not known all count as one.
void align_role(const Lifetimes& lifetimes, std::size_t begin, const Period& period, RoleIndex role,
                const std::vector<Bytes>& values, std::vector<Tick>& aligned) {
  constexpr std::int64_t kVarying = -1;
  constexpr std::int64_t kMaxEdits = 6000;
  std::vector<std::int64_t> to;
  std::vector<Tick> to_tick;
  std::unordered_set<Bytes> known;
  bool varies = false;
  for (const PeriodBlock& block : period.blocks) {
    if (block.role != role) continue;
    const Bytes size = expected_bytes(block, values);
    to.push_back(size > 0 ? size : kVarying);
    to_tick.push_back(block.birth);
    if (size > 0) known.insert(size);
    else varies = true;
  }
  std::vector<std::int64_t> from;
  std::vector<std::size_t> from_index;
  for (std::size_t i = 0; i < aligned.size(); ++i) {
    const Block& block = lifetimes.blocks[begin + i];
    if (block.role != role) continue;
    from.push_back(varies && known.count(block.size()) == 0 ? kVarying : block.size());
    from_index.push_back(i);
  }
  // What comes long before the period's share of the step is construction.
  const std::size_t kept = std::min(from.size(), to.size() + to.size() / 4 + 1024);
  from.erase(from.begin(), from.end() - static_cast<std::ptrdiff_t>(kept));
  from_index.erase(from_index.begin(), from_index.end() - static_cast<std::ptrdiff_t>(kept));
  const std::vector<std::int64_t> pairs = align(from, to, kMaxEdits);
  for (std::size_t i = 0; i < pairs.size(); ++i)
    if (pairs[i] >= 0) aligned[from_index[i]] = to_tick[static_cast<std::size_t>(pairs[i])];
}

Period blank_period(const Lifetimes& lifetimes, std::int64_t base_step) {
  Period period;
  period.base_step = base_step;
  const std::size_t begin = lifetimes.begin_of(base_step);
  period.num_ticks = static_cast<Tick>(lifetimes.begin_of(base_step + 1) - begin);
  if (period.num_ticks == 0)
    throw Error("Planning failed: num_requests=0, the last steps must ask for memory. Record steps of training.");
  for (Tick tick = 0; tick < period.num_ticks; ++tick) {
    const Block& block = lifetimes.blocks[begin + static_cast<std::size_t>(tick)];
    PeriodBlock& added = period.blocks.emplace_back();
    added.size = block.size();
    added.role = block.role;
    added.birth = tick;
    added.used_elsewhere = block.used_elsewhere;
  }
  return period;
}

// Steps that are padded otherwise differ by a few requests of a thousand: no room is kept for these, and the rest is a
// period like any other.
void leave_out_few(Period& period) {
  constexpr std::size_t kLeastShare = 64;  // of all requests, and of all bytes
  std::size_t num_dynamic = 0;
  Bytes bytes = 0;
  Bytes dynamic_bytes = 0;
  for (const PeriodBlock& block : period.blocks) {
    bytes += std::max<Bytes>(block.size, 0);
    if (!block.dynamic) continue;
    ++num_dynamic;
    dynamic_bytes += std::max<Bytes>(block.size, 0);
  }
  if (num_dynamic > period.blocks.size() / kLeastShare || dynamic_bytes > bytes / static_cast<Bytes>(kLeastShare)) return;
  for (PeriodBlock& block : period.blocks) block.dynamic = false;
  period.rooms.clear();
  period.varies = false;
}

// Of steps that are all of one length, routed or not: variables with few followers each that are the shares of experts, which
// all get theirs every time, and not lengths of as many micro-steps. A batch has some by-products too, of which one or two
// carry much: more than that are shares though there are few of them.
bool follows_routing(const Period& period) {
  constexpr std::size_t kRoutingShare = 3;
  constexpr Bytes kMuch = 512;  // this share of all bytes
  constexpr std::size_t kMostByProducts = 3;
  struct Followers {
    std::size_t count = 0;
    Bytes bytes = 0;
  };
  std::vector<Followers> followers(period.variable_bytes.size());
  std::size_t most = 0;
  Bytes all_bytes = 0;
  for (const PeriodBlock& block : period.blocks) {
    all_bytes += std::max<Bytes>(block.size, 0);
    if (block.model.variable == kNoVariable) continue;
    Followers& those = followers[static_cast<std::size_t>(block.model.variable)];
    most = std::max(most, ++those.count);
    those.bytes += std::max<Bytes>(block.size, 0);
  }
  const auto leads = [&](const Followers& those) { return those.count * kRoutingShare >= most; };
  const auto num_leading = std::count_if(followers.begin(), followers.end(), leads);
  const auto num_large = std::count_if(followers.begin(), followers.end(), [&](const Followers& those) { return !leads(those) && those.bytes > all_bytes / kMuch; });
  const std::size_t num_routed = followers.size() - static_cast<std::size_t>(num_leading);
  return !are_few(num_routed, period) || static_cast<std::size_t>(num_large) > kMostByProducts * static_cast<std::size_t>(num_leading);
}

Period fit_steps(const Lifetimes& lifetimes, RoleIndex num_roles) {
  const std::vector<std::int64_t> last = last_steps(lifetimes);
  const std::vector<TicksByRole> alike = steps_of_one_shape(lifetimes, num_roles);
  Period period = blank_period(lifetimes, lifetimes.num_steps - 2);
  if (alike.size() >= 2) {
    fit_same_shape(lifetimes, alike, period);
    if (!is_routed(period) || (alike.size() >= last.size() && !follows_routing(period))) return period;
  }
  Period varying = blank_period(lifetimes, most_typical_step(lifetimes, last, num_roles));
  varying.varies = fit_varying_steps(lifetimes, last, num_roles, varying);
  if (varying.varies) {
    leave_out_few(varying);
    return varying;
  }
  if (alike.size() < 2) match_two_steps(lifetimes, num_roles, period);
  return period;
}

}  // namespace

bool is_routed(const Period& period) {
  const auto odd = std::count_if(period.blocks.begin(), period.blocks.end(), [](const PeriodBlock& block) {
    return block.model.defines || block.size == kUnknownSize;
  });
  return !are_few(static_cast<std::size_t>(odd), period) || follows_routing(period);
}

Period find_period(const Lifetimes& lifetimes, RoleIndex num_roles) {
  if (lifetimes.num_steps < 2)
    throw Error("Planning failed: num_steps=" + std::to_string(lifetimes.num_steps) +
                ", a period needs two complete steps. Record more steps.");
  Period period = fit_steps(lifetimes, num_roles);
  for (PeriodBlock& block : period.blocks) {
    if (!block.planned) continue;
    if (block.used_elsewhere)
      block.death = std::min(block.death + period.num_ticks / kStreamDelayShare, block.birth + 2 * period.num_ticks);
    if (block.death - block.birth <= period.num_ticks) continue;
    // Two copies make the plan twice as long. What is small, as a loss that is kept for the log, is not worth it.
    if (period.varies && block.size < kSmallBytes) {
      block.planned = false;
      block.dynamic = true;
    } else {
      period.num_copies = 2;
    }
  }
  return period;
}

std::vector<Tick> align_step(const Lifetimes& lifetimes, std::int64_t step, const Period& period, RoleIndex num_roles) {
  if (period.varies) return align_varying_step(lifetimes, step, period, num_roles);
  const std::size_t begin = lifetimes.begin_of(step);
  const std::size_t num_allocations = lifetimes.begin_of(step + 1) - begin;
  // First without the variables' values, which the pairs then tell; then with them.
  std::vector<Bytes> values(period.variable_bytes.size(), 0);
  std::vector<Tick> aligned(num_allocations, -1);
  for (RoleIndex role = 0; role < num_roles; ++role) align_role(lifetimes, begin, period, role, values, aligned);
  if (values.empty()) return aligned;
  values = find_values(lifetimes, begin, period, aligned);
  find_values_by_sizes(lifetimes, step, period, values);
  aligned.assign(num_allocations, -1);
  for (RoleIndex role = 0; role < num_roles; ++role) align_role(lifetimes, begin, period, role, values, aligned);
  // Requests that contradict their variable's value were paired by mistake.
  for (std::size_t i = 0; i < num_allocations; ++i) {
    if (aligned[i] < 0) continue;
    const PeriodBlock& block = period.blocks[static_cast<std::size_t>(aligned[i])];
    if (block.model.variable == kNoVariable) continue;
    if (expected_bytes(block, values) != lifetimes.blocks[begin + i].size()) aligned[i] = -1;
  }
  return aligned;
}

}  // namespace stalloc
