#include "core/step_values.h"

namespace stalloc {
namespace {

constexpr std::size_t kReach = 48;      // allocations looked at on either side of where the definer was paired
constexpr std::size_t kMaxWitnesses = 64;

struct Variable {
  std::size_t definer = 0;  // the allocation paired with the defining request, or the first that follows it
  bool is_met = false;
  RoleIndex role = 0;
  std::vector<std::size_t> witnesses;  // allocations paired with requests that follow the variable
};

std::vector<Variable> gather(const Lifetimes& lifetimes, std::size_t begin, const Period& period,
                             const std::vector<Tick>& aligned) {
  std::vector<Variable> variables(period.variable_bytes.size());
  for (std::size_t i = 0; i < aligned.size(); ++i) {
    if (aligned[i] < 0) continue;
    const SizeModel& model = period.blocks[static_cast<std::size_t>(aligned[i])].model;
    if (model.variable == kNoVariable) continue;
    Variable& variable = variables[static_cast<std::size_t>(model.variable)];
    if (!variable.is_met) {
      variable.is_met = true;
      variable.definer = i;
      variable.role = lifetimes.blocks[begin + i].role;
    }
    if (!model.defines && variable.witnesses.size() < kMaxWitnesses) variable.witnesses.push_back(i);
  }
  return variables;
}

}  // namespace

std::vector<Bytes> find_values(const Lifetimes& lifetimes, std::size_t begin, const Period& period,
                               const std::vector<Tick>& aligned) {
  std::vector<Bytes> values(period.variable_bytes.size(), 0);
  const std::vector<Variable> variables = gather(lifetimes, begin, period, aligned);
  const auto block = [&](std::size_t i) -> const Block& { return lifetimes.blocks[begin + i]; };
  for (std::size_t v = 0; v < variables.size(); ++v) {
    const Variable& variable = variables[v];
    if (!variable.is_met) continue;
    std::size_t most = 0;
    const auto consider = [&](std::size_t candidate) {
      if (candidate >= aligned.size() || block(candidate).role != variable.role) return;
      const Bytes value = block(candidate).requested;
      std::size_t followers = 1;
      for (const std::size_t witness : variable.witnesses) {
        const SizeModel& model = period.blocks[static_cast<std::size_t>(aligned[witness])].model;
        followers += model.bytes_at(value) == block(witness).size() ? 1 : 0;
      }
      if (followers <= most) return;
      most = followers;
      values[v] = value;
    };
    consider(variable.definer);
    for (std::size_t distance = 1; distance <= kReach; ++distance) {
      consider(variable.definer - distance);  // wraps below 0, out of range
      consider(variable.definer + distance);
    }
  }
  return values;
}

}  // namespace stalloc
