#include "core/size_kinds.h"

#include <map>
#include <tuple>

#include "core/sequence.h"

namespace stalloc {
namespace {

constexpr std::size_t kRareShare = 64;  // of a step's requests

}  // namespace

std::vector<bool> batch_variables(const Period& period) {
  std::vector<bool> is_batch(period.variable_bytes.size(), false);
  for (const PeriodBlock& block : period.blocks)
    if (block.planned && block.model.variable != kNoVariable) is_batch[static_cast<std::size_t>(block.model.variable)] = true;
  return is_batch;
}

SizeKinds::SizeKinds(const Period& period, const std::vector<Bytes>& values) {
  const std::vector<bool> is_batch = batch_variables(period);
  struct Kind {
    std::int32_t number;
    std::size_t count = 0;
    Bytes size = 0;
  };
  std::map<std::tuple<std::int32_t, double, double>, Kind> kinds;
  for (const PeriodBlock& block : period.blocks) {
    const SizeModel& model = block.model;
    const bool is_constant = model.variable == kNoVariable;
    if (block.size == kUnknownSize || (!is_constant && !is_batch[static_cast<std::size_t>(model.variable)])) continue;
    const Bytes value = is_constant ? 0 : values[static_cast<std::size_t>(model.variable)];
    const std::tuple<std::int32_t, double, double> what{model.variable, is_constant ? static_cast<double>(block.size) : model.base,
                                                        is_constant ? 0.0 : model.slope};
    Kind& kind = kinds.try_emplace(what, Kind{static_cast<std::int32_t>(kinds.size())}).first->second;
    ++kind.count;
    kind.size = is_constant ? block.size : value > 0 ? model.bytes_at(value) : 0;
  }
  for (const auto& [what, kind] : kinds)
    if (kind.size > 0 && kind.count * kRareShare <= period.blocks.size()) kinds_.try_emplace(kind.size, kind.number);
}

}  // namespace stalloc
