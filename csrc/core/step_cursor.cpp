#include "core/step_cursor.h"

#include <algorithm>

namespace stalloc {
namespace {

// A variable's value is believed when it lies between these multiples of the largest one met so far.
constexpr Bytes kLeastShare = 64;  // 1/64
constexpr Bytes kMostTimes = 4;

std::vector<StepScript::Request> requests_of(const Plan& plan, std::int32_t table) {
  std::vector<StepScript::Request> requests;
  for (RoleIndex role = 0; role < plan.num_roles; ++role) {
    const auto cell = static_cast<std::size_t>(table * plan.num_roles + role);
    for (std::int64_t at = plan.table_begin[cell]; at < plan.table_begin[cell + 1]; ++at) {
      const Slot& slot = plan.slots[static_cast<std::size_t>(plan.table_slots[static_cast<std::size_t>(at)])];
      const bool is_known = slot.model.variable != kNoVariable || slot.model.base >= 0;
      requests.push_back({role, is_known ? slot.size : kUnknownSize, slot.model});
    }
  }
  return requests;
}

}  // namespace

StepScript::StepScript(const Plan& plan, std::int32_t table)
    : StepScript(requests_of(plan, table), plan.num_roles, plan.variable_bytes) {
  tolerated_bytes_ = plan.tolerated_bytes();
}

StepScript::StepScript(const std::vector<Request>& requests, RoleIndex num_roles,
                       const std::vector<Bytes>& variable_bytes)
    : dependents_(variable_bytes.size()),
      definers_(static_cast<std::size_t>(num_roles)),
      variable_bytes_(variable_bytes),
      tolerated_bytes_(variable_bytes) {
  std::vector<std::vector<Bytes>> sizes(static_cast<std::size_t>(num_roles));
  for (const Request& request : requests) {
    const auto role = static_cast<std::size_t>(request.role);
    const auto position = static_cast<std::int64_t>(sizes[role].size());
    const SizeModel& model = request.model;
    if (model.variable == kNoVariable) {
      sizes[role].push_back(request.size);
    } else if (model.defines) {
      sizes[role].push_back(kAnySize);
      definers_[role].push_back({position, model.variable});
    } else {
      sizes[role].push_back(kUnknownSize);
      dependents_[static_cast<std::size_t>(model.variable)].push_back({request.role, position, model});
    }
  }
  for (auto& role_sizes : sizes) sequences_.emplace_back(std::move(role_sizes));
}

void StepCursor::make_room(const StepScript& script) {
  if (matchers_.size() < script.sequences_.size()) matchers_.resize(script.sequences_.size());
  if (expected_.size() < script.sequences_.size()) expected_.resize(script.sequences_.size());
  for (std::size_t role = 0; role < script.sequences_.size(); ++role)
    expected_[role].reserve(script.sequences_[role].sizes().size());
  values_.reserve(script.dependents_.size());
}

void StepCursor::begin(const StepScript* script) noexcept {
  script_ = script;
  has_outgrown_ = false;
  if (script == nullptr) return;
  values_.assign(script->dependents_.size(), 0);
  for (std::size_t role = 0; role < script->sequences_.size(); ++role) {
    const Sequence& sequence = script->sequences_[role];
    const Bytes* expected = sequence.sizes().data();
    if (!values_.empty()) {
      expected_[role].assign(sequence.sizes().begin(), sequence.sizes().end());
      expected = expected_[role].data();
    }
    matchers_[role].begin(&sequence, expected);
  }
}

std::int64_t StepCursor::match(RoleIndex role, Bytes requested) noexcept {
  if (script_ == nullptr || role < 0 || static_cast<std::size_t>(role) >= script_->sequences_.size()) return kNoPosition;
  std::int32_t defined = kNoVariable;
  const auto& definers = script_->definers_[static_cast<std::size_t>(role)];
  const auto may_define = [&](std::int64_t position) {
    const auto found = std::lower_bound(definers.begin(), definers.end(), position,
                                        [](const StepScript::Definer& a, std::int64_t at) { return a.position < at; });
    const Bytes most = script_->variable_bytes_[static_cast<std::size_t>(found->variable)];
    if (requested > kMostTimes * most || requested * kLeastShare < most) return false;
    defined = found->variable;
    return true;
  };
  const std::int64_t position =
      matchers_[static_cast<std::size_t>(role)].match(round_up(requested, kAlignment), may_define);
  if (defined != kNoVariable) define(defined, requested);
  return position;
}

void StepCursor::define(std::int32_t variable, Bytes value) noexcept {
  values_[static_cast<std::size_t>(variable)] = value;
  has_outgrown_ |= value > script_->tolerated_bytes_[static_cast<std::size_t>(variable)];
  for (const auto& dependent : script_->dependents_[static_cast<std::size_t>(variable)])
    expected_[static_cast<std::size_t>(dependent.role)][static_cast<std::size_t>(dependent.position)] =
        dependent.model.bytes_at(value);
}

}  // namespace stalloc
