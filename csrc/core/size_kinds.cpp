#include "core/size_kinds.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <unordered_set>

#include "core/sequence.h"

namespace stalloc {
namespace {

constexpr std::size_t kRareShare = 16;  // of a step's requests
constexpr Bytes kLeastSize = 16 << 10;  // smaller sizes are soon met by chance

std::vector<std::unordered_set<Bytes>> size_sets(const Lifetimes& lifetimes, const std::vector<StepValues>& steps) {
  std::vector<std::unordered_set<Bytes>> sets;
  for (const StepValues& step : steps) {
    auto& set = sets.emplace_back();
    for (std::size_t i = lifetimes.begin_of(step.step); i < lifetimes.begin_of(step.step + 1); ++i) set.insert(lifetimes.blocks[i].size());
  }
  return sets;
}

}  // namespace

std::vector<bool> batch_variables(const Period& period) {
  std::vector<bool> is_batch(period.variable_bytes.size(), false);
  for (const PeriodBlock& block : period.blocks)
    if (block.planned && block.model.variable != kNoVariable) is_batch[static_cast<std::size_t>(block.model.variable)] = true;
  return is_batch;
}

KindModels kinds_of(const Period& period) {
  const std::vector<bool> is_batch = batch_variables(period);
  std::map<std::tuple<std::int32_t, double, double>, std::size_t> counts;
  for (const PeriodBlock& block : period.blocks) {
    const SizeModel& model = block.model;
    if (block.size < kLeastSize) continue;
    if (model.variable == kNoVariable) ++counts[{kNoVariable, static_cast<double>(block.size), 0.0}];
    else if (is_batch[static_cast<std::size_t>(model.variable)]) ++counts[{model.variable, model.base, model.slope}];
  }
  KindModels kinds;
  for (const auto& [what, count] : counts)
    if (count * kRareShare <= period.blocks.size()) kinds.push_back(SizeModel{std::get<1>(what), std::get<2>(what), std::get<0>(what), false});
  return kinds;
}

void add_shared_kinds(const Lifetimes& lifetimes, const Period& period, const std::vector<StepValues>& steps, KindModels& kinds) {
  const std::vector<bool> is_batch = batch_variables(period);
  const std::vector<std::unordered_set<Bytes>> sets = size_sets(lifetimes, steps);
  const auto is_shared = [&](const SizeModel& model) {
    for (std::size_t s = 0; s < steps.size(); ++s) {
      const Bytes value = model.variable == kNoVariable ? 0 : steps[s].values[static_cast<std::size_t>(model.variable)];
      if ((model.variable != kNoVariable && value == 0) || sets[s].count(model.bytes_at(value)) == 0) return false;
    }
    return true;
  };
  SizeKinds known(kinds, steps.front().values);
  std::map<Bytes, std::pair<Bytes, std::size_t>> sizes;  // as rounded: as requested, and how often
  for (std::size_t i = lifetimes.begin_of(steps.front().step); i < lifetimes.begin_of(steps.front().step + 1); ++i) {
    const Block& block = lifetimes.blocks[i];
    const auto [at, is_new] = sizes.try_emplace(block.size(), block.requested, 0);
    ++at->second.second;
  }
  for (const auto& [size, asked] : sizes) {
    if (size < kLeastSize || asked.second * kRareShare > period.blocks.size() || known.kind_of(size) != kNoKind) continue;
    SizeModel model{static_cast<double>(size), 0, kNoVariable, false};
    bool is_kind = is_shared(model);
    for (std::size_t variable = 0; variable < is_batch.size() && !is_kind; ++variable) {
      const Bytes value = steps.front().values[variable];
      if (!is_batch[variable] || value == 0) continue;
      model = SizeModel{0, static_cast<double>(asked.first) / static_cast<double>(value), static_cast<std::int32_t>(variable), false};
      is_kind = is_shared(model);
    }
    if (is_kind) kinds.push_back(model);
  }
}

SizeKinds::SizeKinds(const KindModels& kinds, const std::vector<Bytes>& values) {
  for (std::size_t kind = 0; kind < kinds.size(); ++kind) {
    const SizeModel& model = kinds[kind];
    const Bytes value = model.variable == kNoVariable ? 0 : values[static_cast<std::size_t>(model.variable)];
    if (model.variable == kNoVariable || value > 0) kinds_.try_emplace(model.bytes_at(value), static_cast<std::int32_t>(kind));
  }
}

}  // namespace stalloc
