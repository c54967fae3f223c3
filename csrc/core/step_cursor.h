// Follows one step of a plan on all its streams, and learns the step's variables on the way.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "core/dynamic_matcher.h"
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
    bool dynamic = false;  // no slot waits for it
  };

  // `requests` in the order of each role; `variable_bytes` are the values met so far, which bound what is
  // believed to be a variable's value.
  StepScript(const std::vector<Request>& requests, RoleIndex num_roles, const std::vector<Bytes>& variable_bytes);
  const std::vector<Bytes>& tolerated_bytes() const noexcept { return tolerated_bytes_; }
  StepScript(const Plan& plan, std::int32_t table);
  StepScript(const StepScript&) = delete;
  StepScript(StepScript&&) = default;  // keeps the sequences where they are

 private:
  friend class StepCursor;
  struct Dependent {
    RoleIndex role;
    std::int64_t position;
    SizeModel model;
    bool dynamic;
  };
  std::vector<Sequence> sequences_;                 // by role
  std::vector<DynamicSequence> dynamic_sequences_;  // by role; of no length where no request is dynamic
  std::vector<std::vector<Dependent>> dependents_;  // by variable
  std::vector<std::vector<DynamicSequence::Position>> positions_;  // by role
  std::vector<std::vector<std::int32_t>> follows_;  // by role, by position: the variable that the size follows
  std::vector<std::vector<std::int32_t>> defines_;  // by role, by position: the variable whose value the size is
  std::vector<bool> is_sizing_;  // by variable: some request that is not dynamic follows it
  bool has_dynamic_ = false;
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
  // The value that a variable which sizes slots has in this step; 0 until it is known.
  Bytes trusted_value(std::size_t variable) const noexcept;
  std::size_t num_variables() const noexcept { return values_.size(); }
  // A variable has in this step a larger value than the script's plan does for.
  bool has_outgrown() const noexcept { return has_outgrown_; }

 private:
  static constexpr std::size_t kConfirmed = 2;
  static constexpr std::size_t kRecent = 6;
  void define(std::int32_t variable, Bytes value) noexcept;
  void note_outgrown(std::size_t variable) noexcept;
  void confirm(RoleIndex role, std::int64_t position) noexcept;
  std::int64_t find_back(std::size_t role, Bytes requested) noexcept;
  void note_recent(std::size_t role, Bytes requested) noexcept;
  bool fits_at(std::size_t role, std::int64_t first, std::int32_t* variable, Bytes* value) const noexcept;

  const StepScript* script_ = nullptr;
  std::vector<SequenceMatcher> matchers_;         // by role
  std::vector<DynamicMatcher> dynamic_matchers_;  // by role; in their stead where some requests are dynamic
  std::vector<std::vector<Bytes>> expected_;      // by role: the sequence's sizes with the variables put in
  std::vector<Bytes> values_;
  std::vector<std::array<Bytes, kRecent>> recent_;  // by role: the last requests, newest last
  std::vector<std::size_t> num_confirmed_;  // by variable: requests that followed it
  bool has_outgrown_ = false;
};

}  // namespace stalloc
