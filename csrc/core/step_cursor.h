// Follows one step of a plan on all its streams, and learns the step's variables on the way.
#pragma once

#include <cstdint>
#include <vector>

#include "core/plan.h"
#include "core/sequence.h"

namespace stalloc {

// What one step asks for, made ready for following. Immutable.
class StepScript {
 public:
  struct Request {
    RoleIndex role = 0;
    Bytes size = 0;  // rounded; kUnknownSize where it cannot be foretold
    SizeModel model;
  };

  // `requests` in the order of each role; `variable_bytes` are the values met so far, which bound what is
  // believed to be a variable's value.
  StepScript(const std::vector<Request>& requests, RoleIndex num_roles, const std::vector<Bytes>& variable_bytes);
  const std::vector<Bytes>& tolerated_bytes() const noexcept { return tolerated_bytes_; }
  StepScript(const Plan& plan, std::int32_t table);

 private:
  friend class StepCursor;
  struct Dependent {
    RoleIndex role;
    std::int64_t position;
    SizeModel model;
  };
  struct Definer {
    std::int64_t position;
    std::int32_t variable;
  };
  std::vector<Sequence> sequences_;                 // by role
  std::vector<std::vector<Dependent>> dependents_;  // by variable
  std::vector<std::vector<Definer>> definers_;      // by role, by position
  std::vector<Bytes> variable_bytes_;
  std::vector<Bytes> tolerated_bytes_;  // Plan::tolerated_bytes
};

// begin() and match() never allocate once make_room() has seen the script.
class StepCursor {
 public:
  static constexpr std::int64_t kNoPosition = SequenceMatcher::kNoPosition;

  void make_room(const StepScript& script);
  void begin(const StepScript* script) noexcept;
  // The position in the role's sequence that foretells a request of `requested` bytes, or kNoPosition.
  std::int64_t match(RoleIndex role, Bytes requested) noexcept;
  // The value each variable has in this step; 0 until it is known.
  const std::vector<Bytes>& values() const noexcept { return values_; }
  // A variable has in this step a larger value than the script's plan does for.
  bool has_outgrown() const noexcept { return has_outgrown_; }

 private:
  void define(std::int32_t variable, Bytes value) noexcept;

  const StepScript* script_ = nullptr;
  std::vector<SequenceMatcher> matchers_;     // by role
  std::vector<std::vector<Bytes>> expected_;  // by role: the sequence's sizes with the variables put in
  std::vector<Bytes> values_;
  bool has_outgrown_ = false;
};

}  // namespace stalloc
