#include "core/step_cursor.h"

#include <algorithm>
#include <cmath>

namespace stalloc {
namespace {

constexpr std::size_t kMinFollowers = 3;  // of a variable, among the requests that tell its value
constexpr std::int64_t kSearchAhead = 4096;
constexpr std::int64_t kSearchBehind = 512;
constexpr Bytes kDynamicTimes = 64;  // wider by this for what follows a routing

// A request without a slot may come or not only where steps differ: then the plan keeps room for such.
std::vector<StepScript::Request> requests_of(const Plan& plan, std::int32_t table) {
  const bool varies = std::any_of(plan.slots.begin(), plan.slots.end(), [](const Slot& slot) { return slot.kind == SlotKind::kRoom; });
  std::vector<StepScript::Request> requests;
  for (RoleIndex role = 0; role < plan.num_roles; ++role) {
    const auto cell = static_cast<std::size_t>(table * plan.num_roles + role);
    for (std::int64_t at = plan.table_begin[cell]; at < plan.table_begin[cell + 1]; ++at) {
      const Slot& slot = plan.slots[static_cast<std::size_t>(plan.table_slots[static_cast<std::size_t>(at)])];
      const bool is_known = slot.model.variable != kNoVariable || slot.model.base >= 0;
      requests.push_back({role, is_known ? slot.size : kUnknownSize, slot.model, varies && slot.kind == SlotKind::kUnplanned});
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
      is_sizing_(variable_bytes.size(), false),
      variable_bytes_(variable_bytes),
      tolerated_bytes_(variable_bytes) {
  std::vector<std::vector<Bytes>> sizes(static_cast<std::size_t>(num_roles));
  std::vector<bool> is_dynamic(sizes.size(), false);
  positions_.resize(sizes.size());
  follows_.resize(sizes.size());
  defines_.resize(sizes.size());
  for (const Request& request : requests) {
    const auto role = static_cast<std::size_t>(request.role);
    const auto position = static_cast<std::int64_t>(sizes[role].size());
    const SizeModel& model = request.model;
    positions_[role].push_back({request.dynamic, model, request.size});
    follows_[role].push_back(model.defines ? kNoVariable : model.variable);
    defines_[role].push_back(model.defines ? model.variable : kNoVariable);
    if (request.dynamic) is_dynamic[role] = has_dynamic_ = true;
    else if (model.variable != kNoVariable) is_sizing_[static_cast<std::size_t>(model.variable)] = true;
    if (model.variable == kNoVariable) {
      sizes[role].push_back(request.size);
    } else if (model.defines) {
      sizes[role].push_back(kAnySize);
    } else {
      sizes[role].push_back(kUnknownSize);
      dependents_[static_cast<std::size_t>(model.variable)].push_back({request.role, position, model, request.dynamic});
    }
  }
  for (auto& role_sizes : sizes) sequences_.emplace_back(std::move(role_sizes));
  for (std::size_t role = 0; role < sequences_.size(); ++role)
    dynamic_sequences_.push_back(is_dynamic[role] ? DynamicSequence(positions_[role]) : DynamicSequence());
}

bool StepScript::may_define(std::size_t role, std::int64_t position, Bytes requested, std::int32_t* variable) const noexcept {
  const auto at = static_cast<std::size_t>(position);
  const std::int32_t told = defines_[role][at];
  if (told == kNoVariable) return true;
  const Bytes times = positions_[role][at].dynamic ? kDynamicTimes : 1;
  if (!NewBeginning::may_tell(requested, variable_bytes_[static_cast<std::size_t>(told)], times)) return false;
  *variable = told;
  return true;
}

void StepCursor::make_room(const StepScript& script) {
  if (tracks_.size() < script.sequences_.size()) tracks_.resize(script.sequences_.size());
  dynamic_matchers_.resize(tracks_.size());
  recent_.resize(tracks_.size());
  if (expected_.size() < script.sequences_.size()) expected_.resize(script.sequences_.size());
  for (std::size_t role = 0; role < script.sequences_.size(); ++role) {
    expected_[role].reserve(script.sequences_[role].sizes().size());
    tracks_[role].beginning.make_room(script.dependents_.size());
  }
  num_confirmed_.reserve(script.dependents_.size());
  values_.reserve(script.dependents_.size());
  values_ahead_.reserve(script.dependents_.size());
}

void StepCursor::begin(const StepScript* script, const StepScript* next) noexcept {
  script_ = layout_ = script;
  next_ = next;
  has_outgrown_ = false;
  any_ahead_ = false;
  if (script == nullptr) return;
  values_.assign(script->dependents_.size(), 0);
  values_ahead_.assign(values_.size(), 0);
  num_confirmed_.assign(values_.size(), 0);
  for (std::size_t role = 0; role < script->sequences_.size(); ++role) {
    tracks_[role].is_ahead = false;
    tracks_[role].beginning.forget();
    const Bytes* expected = expect(*script, role);
    const DynamicSequence& dynamic = script->dynamic_sequences_[role];
    if (dynamic.length() > 0) dynamic_matchers_[role].begin(&dynamic, expected);
    else tracks_[role].matcher.begin(&script->sequences_[role], expected);
  }
}

// What the role asks for, before any variable's value is known.
const Bytes* StepCursor::expect(const StepScript& script, std::size_t role) noexcept {
  const std::vector<Bytes>& sizes = script.sequences_[role].sizes();
  if (values_.empty()) return sizes.data();
  expected_[role].assign(sizes.begin(), sizes.end());
  return expected_[role].data();
}

std::int64_t StepCursor::match(RoleIndex role, Bytes requested) noexcept {
  if (script_ == nullptr || role < 0 || static_cast<std::size_t>(role) >= script_->sequences_.size()) return kNoPosition;
  const auto index = static_cast<std::size_t>(role);
  if (!script_->has_dynamic_ || script_->dynamic_sequences_[index].length() == 0) return match_fixed(index, requested);
  std::int32_t ignored = kNoVariable;
  const auto may_be = [&](std::int64_t position) { return script_->may_define(index, position, requested, &ignored); };
  std::int64_t position = dynamic_matchers_[index].match(round_up(requested, kAlignment), may_be);
  if (position == kNoPosition) position = find_back(index, requested);
  else note_recent(index, requested);
  const std::int32_t variable = position < 0 ? kNoVariable : script_->defines_[index][static_cast<std::size_t>(position)];
  if (variable != kNoVariable) define(variable, requested);
  else if (position == kNoPosition || !redefine(index, position, requested)) confirm(role, position);
  return position;
}

// Another expert was taken for the one whose share this pass repeats: the first of its requests tells the share anew, so that
// the rest of the pass comes as foretold. False where it came as foretold, or where the variable sizes slots.
bool StepCursor::redefine(std::size_t role, std::int64_t position, Bytes requested) noexcept {
  const auto at = static_cast<std::size_t>(position);
  const std::int32_t variable = script_->follows_[role][at];
  if (variable == kNoVariable || script_->is_sizing_[static_cast<std::size_t>(variable)] || requested < kAlignment) return false;
  const SizeModel& model = script_->positions_[role][at].model;
  if (model.slope <= 0 || model.bytes_at(values_[static_cast<std::size_t>(variable)]) == round_up(requested, kAlignment)) return false;
  const double value = (static_cast<double>(requested) - model.base) / model.slope;
  const Bytes most = script_->variable_bytes_[static_cast<std::size_t>(variable)];
  if (!(value >= 1) || value > static_cast<double>(most) * static_cast<double>(kDynamicTimes)) return false;
  define(variable, std::llround(value));
  return true;
}

std::int64_t StepCursor::match_fixed(std::size_t role, Bytes requested) noexcept {
  Track& track = tracks_[role];
  track.beginning.note(requested, track.matcher.foretells(round_up(requested, kAlignment)));
  if (track.beginning.is_in_order() || track.matcher.is_at_end()) return match_in_order(role, requested);
  std::int64_t position = begin_anew(role);
  if (position != kNoPosition) return position;
  // Not proven yet, but what lives long should have its own place from the first request on.
  position = track.beginning.find_likely(script_of(role).beginning_of(role));
  return position == kNoPosition || position >= track.matcher.cursor() ? match_in_order(role, requested) : position;
}

std::int64_t StepCursor::match_in_order(std::size_t role, Bytes requested) noexcept {
  SequenceMatcher& matcher = tracks_[role].matcher;
  const Bytes rounded = round_up(requested, kAlignment);
  std::int32_t variable = kNoVariable;
  const auto may_define = [&](std::int64_t at) { return script_of(role).may_define(role, at, requested, &variable); };
  std::int64_t position = matcher.match(rounded, may_define);
  if (position == kNoPosition && matcher.is_at_end() && go_ahead(role)) position = matcher.match(rounded, may_define);
  if (variable != kNoVariable) define_of(role, variable, requested);
  else if (!tracks_[role].is_ahead) confirm(static_cast<RoleIndex>(role), position);
  return position;
}

// The position of the request that shows that the step has begun anew: the cursor then stands behind it.
std::int64_t StepCursor::begin_anew(std::size_t role) noexcept {
  Track& track = tracks_[role];
  const std::int64_t position = track.beginning.find_proven(script_of(role).beginning_of(role));
  if (position == kNoPosition || position + 1 == track.matcher.cursor()) return kNoPosition;
  track.matcher.go_to(position + 1);
  track.beginning.forget();
  const std::vector<Bytes>& values = track.beginning.values();
  for (std::size_t variable = 0; variable < values.size(); ++variable)
    if (values[variable] > 0) define_of(role, static_cast<std::int32_t>(variable), values[variable]);
  return position;
}

// Lets a role that has asked for all of its step follow the next one. False where there is nothing to follow.
bool StepCursor::go_ahead(std::size_t role) noexcept {
  if (next_ == nullptr || script_->has_dynamic_ || next_->has_dynamic_) return false;
  if (role >= next_->sequences_.size() || next_->sequences_[role].length() == 0) return false;
  Track& track = tracks_[role];
  track.is_ahead = any_ahead_ = true;
  track.beginning.forget();
  track.matcher.begin(&next_->sequences_[role], expect(*next_, role));
  for (std::size_t variable = 0; variable < values_ahead_.size(); ++variable)
    if (values_ahead_[variable] > 0) expect_of_variable(true, variable, values_ahead_[variable]);
  return true;
}

void StepCursor::confirm(RoleIndex role, std::int64_t position) noexcept {
  if (position == kNoPosition || values_.empty()) return;
  const std::int32_t variable = script_->follows_[static_cast<std::size_t>(role)][static_cast<std::size_t>(position)];
  if (variable == kNoVariable) return;
  ++num_confirmed_[static_cast<std::size_t>(variable)];
  note_outgrown(static_cast<std::size_t>(variable));
}

void StepCursor::note_outgrown(std::size_t variable) noexcept {
  has_outgrown_ |= trusted_value(variable) > layout_->tolerated_bytes_[variable];
}

void StepCursor::adopt_layout(const StepScript& script) noexcept {
  layout_ = &script;
  has_outgrown_ = false;
  for (std::size_t variable = 0; variable < values_.size(); ++variable) note_outgrown(variable);
}

// Where steps differ, another request may have been mistaken for the one that tells the value: enough others must have
// come as it foretells. What only dynamic requests follow sizes no slot.
Bytes StepCursor::trusted_value(std::size_t variable) const noexcept {
  if (!script_->has_dynamic_) return values_[variable];
  const bool is_confirmed = num_confirmed_[variable] >= std::min(kConfirmed, script_->dependents_[variable].size());
  return script_->is_sizing_[variable] && is_confirmed ? values_[variable] : 0;
}

// A run that took another request for the one that tells a variable knows no size any more that follows it. The ratios
// of sizes in a row tell the place and the value.
std::int64_t StepCursor::find_back(std::size_t role, Bytes requested) noexcept {
  DynamicMatcher& matcher = dynamic_matchers_[role];
  note_recent(role, requested);
  if (matcher.num_lost() % kRecent != 0 || matcher.num_lost() == 0) return kNoPosition;
  const auto length = static_cast<std::int64_t>(script_->positions_[role].size());
  const std::int64_t end = std::min(matcher.cursor() + kSearchAhead, length - static_cast<std::int64_t>(kRecent));
  for (std::int64_t first = std::max<std::int64_t>(matcher.cursor() - kSearchBehind, 0); first <= end; ++first) {
    std::int32_t variable = kNoVariable;
    Bytes value = 0;
    if (!fits_at(role, first, &variable, &value)) continue;
    if (num_confirmed_[static_cast<std::size_t>(variable)] >= kConfirmed) continue;  // the guesses will find the place
    define(variable, value);
    matcher.go_to(first + static_cast<std::int64_t>(kRecent));
    return first + static_cast<std::int64_t>(kRecent) - 1;
  }
  return kNoPosition;
}

// Whether the recent requests are those from `first` on for one value of one variable, which some of them tell.
bool StepCursor::fits_at(std::size_t role, std::int64_t first, std::int32_t* variable, Bytes* value) const noexcept {
  std::size_t num_followers = 0;
  double first_slope = 0;
  bool differ = false;
  for (std::size_t i = 0; i < kRecent; ++i) {
    const DynamicSequence::Position& position = script_->positions_[role][static_cast<std::size_t>(first) + i];
    const Bytes requested = recent_[role][i];
    const SizeModel& model = position.model;
    if (position.dynamic) return false;
    if (model.variable == kNoVariable || model.slope == 0) {
      if (position.size != round_up(requested, kAlignment)) return false;
      continue;
    }
    if (*variable == kNoVariable) {
      *variable = model.variable;
      *value = model.defines ? requested : std::llround((static_cast<double>(requested) - model.base) / model.slope);
      first_slope = model.slope;
      const Bytes most = script_->variable_bytes_[static_cast<std::size_t>(*variable)];
      if (*value <= 0 || !NewBeginning::may_tell(*value, most)) return false;
    }
    if (*variable != model.variable || model.bytes_at(*value) != round_up(requested, kAlignment)) return false;
    differ |= model.slope != first_slope;
    ++num_followers;
  }
  return differ && num_followers >= kMinFollowers;
}

void StepCursor::note_recent(std::size_t role, Bytes requested) noexcept {
  auto& recent = recent_[role];
  std::rotate(recent.begin(), recent.begin() + 1, recent.end());
  recent.back() = requested;
}

void StepCursor::define(std::int32_t variable, Bytes value) noexcept {
  values_[static_cast<std::size_t>(variable)] = value;
  num_confirmed_[static_cast<std::size_t>(variable)] = 0;
  note_outgrown(static_cast<std::size_t>(variable));
  expect_of_variable(false, static_cast<std::size_t>(variable), value);
}

// What comes behind a step's last request may be an evaluation: its batch is no reason to place the slots anew.
void StepCursor::define_of(std::size_t role, std::int32_t variable, Bytes value) noexcept {
  if (!tracks_[role].is_ahead) return define(variable, value);
  values_ahead_[static_cast<std::size_t>(variable)] = value;
  expect_of_variable(true, static_cast<std::size_t>(variable), value);
}

// Of the roles that are ahead, or of the others.
void StepCursor::expect_of_variable(bool is_ahead, std::size_t variable, Bytes value) noexcept {
  for (const auto& dependent : (is_ahead ? next_ : script_)->dependents_[variable]) {
    const auto role = static_cast<std::size_t>(dependent.role);
    if (any_ahead_ && tracks_[role].is_ahead != is_ahead) continue;
    const Bytes size = dependent.model.bytes_at(value);
    expected_[role][static_cast<std::size_t>(dependent.position)] = size;
    if (!dependent.dynamic && script_->dynamic_sequences_[role].length() > 0) dynamic_matchers_[role].note_firm_size(dependent.position, size);
  }
}

}  // namespace stalloc
