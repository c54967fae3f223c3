// Follows one step of a plan on all its streams, and learns the step's variables on the way.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "core/dynamic_matcher.h"
#include "core/new_beginning.h"
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
  // The variable that a request of `requested` bytes tells at a position, if it can be there.
  bool may_define(std::size_t role, std::int64_t position, Bytes requested, std::int32_t* variable) const noexcept;
  NewBeginning::Step beginning_of(std::size_t role) const noexcept { return {positions_[role], variable_bytes_}; }

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
  // `next` is the step after it: what a role asks for behind its last request is taken to begin that. Null: nothing is.
  void begin(const StepScript* script, const StepScript* next = nullptr) noexcept;
  // The position in the role's sequence that foretells a request of `requested` bytes, or kNoPosition.
  std::int64_t match(RoleIndex role, Bytes requested) noexcept;
  // The role's positions are now those of the next step.
  bool is_ahead(RoleIndex role) const noexcept { return any_ahead_ && tracks_[static_cast<std::size_t>(role)].is_ahead; }
  // The value that a variable which sizes slots has in this step; 0 until it is known.
  Bytes trusted_value(std::size_t variable) const noexcept;
  std::size_t num_variables() const noexcept { return values_.size(); }
  // At least half of the requests that follow the variable came as its value foretells.
  bool is_borne_out(std::size_t variable) const noexcept {
    return num_confirmed_[variable] > 0 && 2 * num_confirmed_[variable] >= script_->dependents_[variable].size();
  }
  // A variable has in this step a larger value than the script's plan does for.
  bool has_outgrown() const noexcept { return has_outgrown_; }
  // From now on the plan is that of `script`, which differs from the one begun with only in the values it does for.
  void adopt_layout(const StepScript& script) noexcept;

 private:
  static constexpr std::size_t kConfirmed = 2;
  static constexpr std::size_t kRecent = 6;

  // The place of one role, where none of its requests is dynamic.
  struct Track {
    SequenceMatcher matcher;
    NewBeginning beginning;
    bool is_ahead = false;
  };

  std::int64_t match_fixed(std::size_t role, Bytes requested) noexcept;
  bool redefine(std::size_t role, std::int64_t position, Bytes requested) noexcept;
  std::int64_t match_in_order(std::size_t role, Bytes requested) noexcept;
  std::int64_t begin_anew(std::size_t role) noexcept;
  bool go_ahead(std::size_t role) noexcept;
  const StepScript& script_of(std::size_t role) const noexcept { return tracks_[role].is_ahead ? *next_ : *script_; }
  const Bytes* expect(const StepScript& script, std::size_t role) noexcept;
  void expect_of_variable(bool is_ahead, std::size_t variable, Bytes value) noexcept;
  void define_of(std::size_t role, std::int32_t variable, Bytes value) noexcept;
  void define(std::int32_t variable, Bytes value) noexcept;
  void note_outgrown(std::size_t variable) noexcept;
  void confirm(RoleIndex role, std::int64_t position) noexcept;
  std::int64_t find_back(std::size_t role, Bytes requested) noexcept;
  void note_recent(std::size_t role, Bytes requested) noexcept;
  bool fits_at(std::size_t role, std::int64_t first, std::int32_t* variable, Bytes* value) const noexcept;

  const StepScript* script_ = nullptr;
  const StepScript* layout_ = nullptr;  // of the plan that is served: script_, or one placed anew
  const StepScript* next_ = nullptr;
  std::vector<Track> tracks_;                     // by role
  bool any_ahead_ = false;
  std::vector<DynamicMatcher> dynamic_matchers_;  // by role; in their stead where some requests are dynamic
  std::vector<std::vector<Bytes>> expected_;      // by role: the sequence's sizes with the variables put in
  std::vector<Bytes> values_;
  std::vector<Bytes> values_ahead_;  // in the next step
  std::vector<std::array<Bytes, kRecent>> recent_;  // by role: the last requests, newest last
  std::vector<std::size_t> num_confirmed_;  // by variable: requests that followed it
  bool has_outgrown_ = false;
};

}  // namespace stalloc
