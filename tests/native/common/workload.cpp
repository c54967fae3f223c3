#include "common/workload.h"

#include <algorithm>
#include <unordered_map>

namespace stalloc {
namespace {

constexpr Bytes kTokens = 64;

}  // namespace

Workload::Workload(std::uint64_t seed, Bytes largest, std::vector<StreamHandle> streams)
    : draw_(seed), largest_(largest), streams_(std::move(streams)) {
  const std::int64_t num_phases = draw_.between(1, 3);
  for (std::int64_t i = 0; i < num_phases; ++i) add_phase();
  const std::int64_t length = draw_.between(1, 3);
  for (std::int64_t i = 0; i < length; ++i) pattern_.push_back(static_cast<std::size_t>(draw_.below(num_phases)));
  for (std::int64_t i = draw_.between(1, 4); i > 0; --i) tokens_.push_back(draw_.between(1, kTokens));
}

void Workload::add_phase() {
  std::vector<Model> phase;
  std::vector<std::int32_t> live;
  const std::int64_t num_requests = draw_.between(3, 70);
  const double nested = draw_.chance(0.5) ? 0.9 : 0.3;  // frees in reverse, or in any order
  const double used_elsewhere = draw_.chance(0.5) ? 0.2 : 0.0;
  for (std::int64_t i = 0; i < num_requests; ++i) {
    Model request;
    const Bytes size = Bytes{1} << draw_.between(4, 40);
    request.operation.size = std::max<Bytes>(1, draw_.below(std::min(size, largest_) + 1));
    request.operation.name = num_names_++;
    request.operation.stream = draw_.pick(streams_);
    if (draw_.chance(0.4)) request.per_token = request.operation.size / kTokens, request.operation.size %= 512;
    if (request.operation.size + request.per_token == 0) request.operation.size = 1;
    phase.push_back(request);
    live.push_back(request.operation.name);
    if (draw_.chance(used_elsewhere)) {
      Operation use{Operation::Kind::kUse, request.operation.name, 0, draw_.pick(streams_)};
      phase.push_back({use, 0});
    }
    while (!live.empty() && draw_.chance(0.45)) {
      const std::size_t at = draw_.chance(nested) ? live.size() - 1 : static_cast<std::size_t>(draw_.below(static_cast<std::int64_t>(live.size())));
      phase.push_back({{Operation::Kind::kFree, live[at], 0, 0}, 0});
      live.erase(live.begin() + static_cast<std::ptrdiff_t>(at));
    }
  }
  // Some of what is left lives into the next steps.
  while (!live.empty()) {
    if (!draw_.chance(0.2)) phase.push_back({{Operation::Kind::kFree, live.back(), 0, 0}, 0});
    live.pop_back();
  }
  phases_.push_back(std::move(phase));
}

std::vector<Operation> Workload::construction() {
  std::vector<Operation> operations;
  for (std::int64_t i = draw_.below(20); i > 0; --i)
    operations.push_back({Operation::Kind::kAllocate, num_names_++, draw_.between(1, largest_), draw_.pick(streams_)});
  return operations;
}

std::vector<Operation> Workload::step(std::int64_t step, double stray) {
  const Bytes tokens = draw_.pick(tokens_);
  std::vector<Operation> operations;
  for (const Model& model : phases_[pattern_[static_cast<std::size_t>(step) % pattern_.size()]]) {
    if (draw_.chance(stray)) operations.push_back(stray_operation());
    if (draw_.chance(stray)) continue;
    operations.push_back(model.operation);
    operations.back().size += model.per_token * tokens;
  }
  return operations;
}

Operation Workload::stray_operation() {
  const auto kind = static_cast<Operation::Kind>(draw_.below(3));
  return {kind, static_cast<std::int32_t>(draw_.below(num_names_)), draw_.between(1, largest_), draw_.pick(streams_)};
}

Trace recorded(const std::vector<std::vector<Operation>>& steps, std::vector<StreamHandle> streams) {
  Trace trace;
  std::unordered_map<std::int32_t, std::uint64_t> live;
  std::uint64_t next = 512;
  const auto role_of = [&](StreamHandle stream) {
    return static_cast<RoleIndex>(std::find(streams.begin(), streams.end(), stream) - streams.begin());
  };
  const auto free = [&](std::int32_t name) {
    const auto found = live.find(name);
    if (found == live.end()) return;
    trace.events.push_back({found->second, kFree, 0, 0});
    live.erase(found);
  };
  trace.step_begin.push_back(0);
  for (const auto& step : steps) {
    for (const Operation& operation : step) {
      if (operation.kind == Operation::Kind::kAllocate) {
        const std::uint64_t address = next;
        next += static_cast<std::uint64_t>(round_up(operation.size, kAlignment));
        trace.events.push_back({address, operation.size, role_of(operation.stream), 0});
        free(operation.name);
        live[operation.name] = address;
      } else if (operation.kind == Operation::Kind::kFree) {
        free(operation.name);
      } else if (live.count(operation.name) != 0) {
        trace.events.push_back({live[operation.name], kRecordStream, role_of(operation.stream), 0});
      }
    }
    trace.step_begin.push_back(static_cast<std::int64_t>(trace.events.size()));
  }
  trace.num_roles = static_cast<RoleIndex>(streams.size());
  return trace;
}

}  // namespace stalloc
