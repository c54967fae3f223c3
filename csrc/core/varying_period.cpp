#include "core/varying_period.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "core/dynamic_room.h"
#include "core/sequence.h"
#include "core/size_models.h"
#include "core/step_alignment.h"
#include "core/step_values.h"

namespace stalloc {
namespace {

constexpr double kMinInCommon = 0.5;  // of the base step's requests, for a step to count
// A variable of the whole batch has many followers in every step; what only the few requests of one expert or one layer
// follow is a part of the routing.
constexpr std::size_t kRoutingShare = 3;
constexpr std::size_t kMostOfExpert = 64;   // followers, in forward, recomputation and backward together
constexpr std::size_t kLeastOfBatch = 12;   // this share of a step's requests follows its batches
constexpr std::size_t kMostMicroSteps = 8;  // whose batches may have as few followers
constexpr std::size_t kMinAffinePoints = 4;  // what a routing decides soon lies on a line through three by chance

// The base step, paired with itself.
std::vector<Tick> own_ticks(const Period& period) {
  std::vector<Tick> ticks(static_cast<std::size_t>(period.num_ticks));
  std::iota(ticks.begin(), ticks.end(), Tick{0});
  return ticks;
}

class VaryingSteps {
 public:
  VaryingSteps(const Lifetimes& lifetimes, const std::vector<std::int64_t>& steps, RoleIndex num_roles, Period& period)
      : lifetimes_(lifetimes), num_roles_(num_roles), period_(period) {
    for (const std::int64_t step : steps) add_sample(step, pair_steps(lifetimes_, step, period_.base_step, num_roles_));
  }

  bool fit() {
    if (samples_.size() < 2) return false;
    fit_samples();
    pair_by_kinds();
    if (samples_.size() < 2) return false;
    fit_samples();
    size_dynamic_rooms(samples_, num_roles_, period_);
    return true;
  }

 private:
  // How long blocks live pairs most requests. From these it is known what every step asks for, whatever its batch, and that
  // pairs the rest.
  void pair_by_kinds() {
    std::vector<StepSample> samples;
    std::swap(samples, samples_);
    const auto values_in = [&](std::int64_t step, const std::vector<Tick>& pairs) {
      return StepValues{step, find_values(lifetimes_, lifetimes_.begin_of(step), period_, pairs)};
    };
    std::vector<StepValues> values = {values_in(period_.base_step, own_ticks(period_))};
    for (const StepSample& sample : samples) values.push_back(values_in(sample.step, sample.period_tick));
    KindModels kinds = kinds_of(period_);
    add_shared_kinds(lifetimes_, period_, values, kinds);
    const SizeKinds base_kinds(kinds, values.front().values);
    for (std::size_t s = 0; s < samples.size(); ++s)
      add_sample(samples[s].step, pair_steps(lifetimes_, samples[s].step, period_.base_step, num_roles_,
                                             SizeKinds(kinds, values[s + 1].values), base_kinds, samples[s].period_tick));
  }

  void fit_samples() {
    for (PeriodBlock& block : period_.blocks) block.death = 0;
    // Room for what is routed grows with each micro-step's batch, and the longest are hardly ever met together.
    const SizeModels fitted = fit_sizes(requested_sizes(), kMinAffinePoints, false);
    period_.variable_bytes = fitted.variable_bytes;
    const std::vector<bool> is_routing = routing_variables(fitted);
    set_deaths();
    for (std::size_t tick = 0; tick < period_.blocks.size(); ++tick) {
      const std::int32_t variable = fitted.models[tick].variable;
      const bool follows_routing = variable != kNoVariable && is_routing[static_cast<std::size_t>(variable)];
      classify(period_.blocks[tick], fitted, !follows_routing && is_in_every_step(tick));
    }
  }

  void add_sample(std::int64_t step, std::vector<Tick> period_tick) {
    StepSample sample;
    sample.step = step;
    sample.period_tick = std::move(period_tick);
    const auto paired = std::count_if(sample.period_tick.begin(), sample.period_tick.end(), [](Tick tick) { return tick >= 0; });
    if (static_cast<double>(paired) < kMinInCommon * static_cast<double>(period_.num_ticks)) return;
    sample.blocks = &lifetimes_.blocks[lifetimes_.begin_of(step)];
    sample.next_tick.push_back(0);
    sample.allocation.assign(static_cast<std::size_t>(period_.num_ticks), -1);
    for (std::size_t i = 0; i < sample.period_tick.size(); ++i) {
      const Tick tick = sample.period_tick[i];
      sample.next_tick.push_back(tick < 0 ? sample.next_tick.back() : std::max(sample.next_tick.back(), tick + 1));
      if (tick >= 0) sample.allocation[static_cast<std::size_t>(tick)] = static_cast<std::int64_t>(i);
    }
    samples_.push_back(std::move(sample));
  }

  std::vector<std::vector<Bytes>> requested_sizes() const {
    std::vector<std::vector<Bytes>> sizes(period_.blocks.size(), std::vector<Bytes>(samples_.size(), kAbsentSize));
    for (std::size_t s = 0; s < samples_.size(); ++s)
      for (std::size_t tick = 0; tick < sizes.size(); ++tick)
        if (const Block* block = samples_[s].at(tick)) sizes[tick][s] = block->requested;
    return sizes;
  }

  bool is_in_every_step(std::size_t tick) const {
    return std::all_of(samples_.begin(), samples_.end(), [tick](const StepSample& sample) { return sample.at(tick) != nullptr; });
  }

  // Of batches that are all of one length no variable tells: then those there are have few followers, and they are many, all with
  // about as many, or little follows them together.
  bool are_all_shares(std::vector<std::size_t> followers, std::size_t most) const {
    if (followers.empty() || most >= kMostOfExpert) return false;
    std::sort(followers.begin(), followers.end());
    const auto leading = std::partition_point(followers.begin(), followers.end(), [most](std::size_t count) { return count * kRoutingShare < most; });
    if (std::accumulate(leading, followers.end(), std::size_t{0}) * kLeastOfBatch < samples_.front().allocation.size()) return true;
    return followers.size() > kMostMicroSteps && most < kRoutingShare * followers[followers.size() / 2];
  }

  std::vector<bool> routing_variables(const SizeModels& fitted) const {
    std::vector<std::size_t> followers(fitted.variable_bytes.size(), 0);
    for (std::size_t tick = 0; tick < fitted.models.size(); ++tick)
      if (const std::int32_t variable = fitted.models[tick].variable; variable != kNoVariable && is_in_every_step(tick))
        ++followers[static_cast<std::size_t>(variable)];
    const std::size_t most = followers.empty() ? 0 : *std::max_element(followers.begin(), followers.end());
    const bool all_are = are_all_shares(followers, most);
    std::vector<bool> is_routing;
    for (const std::size_t count : followers) is_routing.push_back(all_are || count * kRoutingShare < most);
    return is_routing;
  }

  // Each block lives as long as it did in any step, in the base step's ticks.
  void set_deaths() {
    for (std::size_t s = 0; s < samples_.size(); ++s) {
      StepSample& sample = samples_[s];
      sample.deaths.assign(sample.period_tick.size(), 0);
      for (std::size_t i = 0; i < sample.period_tick.size(); ++i) {
        sample.deaths[i] = period_death(s, sample.blocks[i]);
        if (sample.period_tick[i] < 0) continue;
        PeriodBlock& block = period_.blocks[static_cast<std::size_t>(sample.period_tick[i])];
        block.used_elsewhere |= sample.blocks[i].used_elsewhere;
        if (sample.deaths[i] > 0) block.death = std::max(block.death, sample.deaths[i]);
      }
    }
    // What outlives the step after the base step stays.
    for (const StepSample& sample : samples_)
      for (std::size_t i = 0; i < sample.deaths.size() && sample.step == period_.base_step; ++i)
        if (sample.deaths[i] == 0) period_.blocks[i].death = 0;
  }

  // 0 when the block outlives the step after its own.
  Tick period_death(std::size_t s, const Block& block) const {
    const std::int64_t step = samples_[s].step;
    const auto end = static_cast<Tick>(lifetimes_.begin_of(step + 1));
    if (block.death <= end)
      return samples_[s].next_tick[static_cast<std::size_t>(block.death) - lifetimes_.begin_of(step)];
    if (step + 2 > lifetimes_.num_steps || block.death > static_cast<Tick>(lifetimes_.begin_of(step + 2))) return 0;
    const bool is_next_known = s + 1 < samples_.size() && samples_[s + 1].step == step + 1;
    if (!is_next_known) return period_.num_ticks + std::min(block.death - end, period_.num_ticks);
    return period_.num_ticks + samples_[s + 1].next_tick[static_cast<std::size_t>(block.death - end)];
  }

  void classify(PeriodBlock& block, const SizeModels& fitted, bool is_static) const {
    const auto tick = static_cast<std::size_t>(block.birth);
    block.model = fitted.models[tick];
    const std::int32_t variable = block.model.variable;
    block.size = round_up(largest(tick), kAlignment);
    if (variable != kNoVariable)
      block.size = std::max(block.size, block.model.bytes_at(period_.variable_bytes[static_cast<std::size_t>(variable)]));
    const bool lasts = block.death <= block.birth;
    block.planned = fitted.is_known[tick] && is_static && !lasts;
    block.dynamic = !block.planned && !lasts;
    if (!fitted.is_known[tick]) block.size = kUnknownSize;
  }

  Bytes largest(std::size_t tick) const {
    Bytes size = 0;
    for (const StepSample& sample : samples_)
      if (const Block* block = sample.at(tick)) size = std::max(size, block->requested);
    return size;
  }

  const Lifetimes& lifetimes_;
  const RoleIndex num_roles_;
  Period& period_;
  std::vector<StepSample> samples_;
};

}  // namespace

bool fit_varying_steps(const Lifetimes& lifetimes, const std::vector<std::int64_t>& steps, RoleIndex num_roles,
                       Period& period) {
  return VaryingSteps(lifetimes, steps, num_roles, period).fit();
}

std::vector<Tick> align_varying_step(const Lifetimes& lifetimes, std::int64_t step, const Period& period,
                                     RoleIndex num_roles) {
  const auto values_in = [&](const std::vector<Tick>& pairs) { return find_values(lifetimes, lifetimes.begin_of(step), period, pairs); };
  std::vector<Tick> by_lives = pair_steps(lifetimes, step, period.base_step, num_roles);
  const KindModels models = kinds_of(period);
  const SizeKinds kinds(models, values_in(by_lives));
  const SizeKinds base_kinds(models, find_values(lifetimes, lifetimes.begin_of(period.base_step), period, own_ticks(period)));
  std::vector<Tick> aligned = pair_steps(lifetimes, step, period.base_step, num_roles, kinds, base_kinds, std::move(by_lives));
  const std::vector<Bytes> values = values_in(aligned);
  for (std::size_t i = 0; i < aligned.size(); ++i) {
    if (aligned[i] < 0) continue;
    const PeriodBlock& repeats = period.blocks[static_cast<std::size_t>(aligned[i])];
    if (repeats.dynamic) continue;
    const std::int32_t variable = repeats.model.variable;
    const Bytes expected = variable == kNoVariable ? repeats.size : repeats.model.bytes_at(values[static_cast<std::size_t>(variable)]);
    if (expected != lifetimes.blocks[lifetimes.begin_of(step) + i].size()) aligned[i] = -1;
  }
  return aligned;
}

}  // namespace stalloc
