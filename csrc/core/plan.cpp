#include "core/plan.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "core/validator.h"

namespace stalloc {
namespace {

constexpr RoleIndex kMaxRoles = 256;
constexpr std::size_t kMaxSlots = std::size_t{1} << 24;
constexpr Tick kMaxTick = Tick{1} << 40;
constexpr std::size_t kMaxVariables = 65536;

[[noreturn]] void refuse(const std::string& name, std::int64_t value, const std::string& rule) {
  throw Error("Plan refused: " + name + "=" + std::to_string(value) + ", " + rule +
              ". Delete the plan, it will be made anew.");
}

void check_header(const Plan& plan) {
  if (plan.num_roles < 1 || plan.num_roles > kMaxRoles) refuse("num_roles", plan.num_roles, "must lie in [1, 256]");
  if (plan.num_prologue < 0 || plan.num_prologue > 4096) refuse("num_prologue", plan.num_prologue, "must lie in [0, 4096]");
  if (plan.num_period < 1 || plan.num_period > 64) refuse("num_period", plan.num_period, "must lie in [1, 64]");
  if (plan.slots.size() > kMaxSlots) refuse("num_slots", static_cast<std::int64_t>(plan.slots.size()), "must be at most 2^24");
  const auto num_roles = static_cast<std::size_t>(plan.num_roles);
  if (plan.arena_bytes.size() != num_roles || plan.lower_bound_bytes.size() != num_roles)
    refuse("arena_bytes.size", static_cast<std::int64_t>(plan.arena_bytes.size()), "must be one a role");
  for (const Bytes bytes : plan.arena_bytes)
    if (bytes < 0 || bytes > kMaxArenaBytes || bytes % kAlignment != 0)
      refuse("arena_bytes", bytes, "must be a multiple of 512 in [0, 1 TiB]");
  if (plan.variable_bytes.size() > kMaxVariables)
    refuse("num_variables", static_cast<std::int64_t>(plan.variable_bytes.size()), "must be at most 65536");
  for (const Bytes bytes : plan.variable_bytes)
    if (bytes <= 0 || bytes > kMaxArenaBytes) refuse("variable_bytes", bytes, "must be positive and at most 1 TiB");
  if (plan.window_begin < 0 || plan.window_end < plan.window_begin || plan.window_end > kMaxTick)
    refuse("window_end", plan.window_end, "must lie in [window_begin, 2^40]");
}

void check_spaces(const Plan& plan) {
  const auto num_roles = static_cast<std::size_t>(plan.num_roles);
  if (plan.role_space.size() != num_roles)
    refuse("role_space.size", static_cast<std::int64_t>(plan.role_space.size()), "must be one a role");
  std::vector<RoleIndex> sharing(num_roles, 0);
  for (RoleIndex role = 0; role < plan.num_roles; ++role) {
    const RoleIndex space = plan.space_of(role);
    if (space < 0 || space > role || plan.space_of(space) != space)
      refuse("role_space", space, "must be the first role of the space");
    if (++sharing[static_cast<std::size_t>(space)] > kMaxSharingRoles)
      refuse("role_space", space, "may be shared by 16 roles");
    if (space != role && plan.arena_bytes[static_cast<std::size_t>(role)] != 0)
      refuse("arena_bytes", plan.arena_bytes[static_cast<std::size_t>(role)], "must be 0 for a role in another's space");
  }
}

void check_tables(const Plan& plan) {
  const auto cells = static_cast<std::size_t>(plan.num_tables()) * static_cast<std::size_t>(plan.num_roles);
  if (plan.table_begin.size() != cells + 1)
    refuse("table_begin.size", static_cast<std::int64_t>(plan.table_begin.size()), "must be tables x roles + 1");
  if (plan.table_begin.front() != 0 ||
      plan.table_begin.back() != static_cast<std::int64_t>(plan.table_slots.size()) ||
      !std::is_sorted(plan.table_begin.begin(), plan.table_begin.end()))
    refuse("table_begin", plan.table_begin.back(), "must rise from 0 to the number of positions");
  const auto num_roles = static_cast<std::size_t>(plan.num_roles);
  for (std::size_t cell = 0; cell < cells; ++cell) {
    const auto role = static_cast<RoleIndex>(cell % num_roles);
    for (std::int64_t at = plan.table_begin[cell]; at < plan.table_begin[cell + 1]; ++at) {
      const std::int32_t slot = plan.table_slots[static_cast<std::size_t>(at)];
      if (slot < 0 || static_cast<std::size_t>(slot) >= plan.slots.size())
        refuse("table_slots", slot, "must name a slot");
      if (plan.slots[static_cast<std::size_t>(slot)].role != role)
        refuse("table_slots", slot, "must name a slot of its table's role");
    }
  }
}

void check_model(const Plan& plan, const SizeModel& model) {
  if (model.variable == kNoVariable && !model.defines) return;
  if (model.variable < 0 || static_cast<std::size_t>(model.variable) >= plan.variable_bytes.size())
    refuse("slot.variable", model.variable, "must be one of the plan's variables");
  const double most = static_cast<double>(kMaxArenaBytes);
  if (!(std::abs(model.base) <= most) || !(std::abs(model.slope) <= most))
    refuse("slot.model", model.variable, "must have a base and a slope within 1 TiB");
}

void check_slot(const Plan& plan, const Slot& slot) {
  check_model(plan, slot.model);
  if (slot.role < 0 || slot.role >= plan.num_roles) refuse("slot.role", slot.role, "must be one of the plan's roles");
  if (slot.size <= 0 || slot.size % kAlignment != 0 || slot.size > kMaxArenaBytes)
    refuse("slot.size", slot.size, "must be a positive multiple of 512");
  if (slot.kind > SlotKind::kRoom) refuse("slot.kind", static_cast<int>(slot.kind), "must lie in [0, 4]");
  if (slot.birth < -kMaxTick || slot.birth > kMaxTick) refuse("slot.birth", slot.birth, "must lie within 2^40 of 0");
  if (slot.kind == SlotKind::kUnplanned) {
    if (slot.death < -kMaxTick || slot.death > 2 * kMaxTick) refuse("slot.death", slot.death, "must lie within 2^41 of 0");
    return;
  }
  if (slot.offset < 0 || slot.offset % kAlignment != 0 ||
      slot.offset > plan.arena_bytes[static_cast<std::size_t>(plan.space_of(slot.role))] - slot.size)
    refuse("slot.offset", slot.offset, "must be a multiple of 512 inside the arena of its space");
  if (slot.birth < 0 || slot.death <= slot.birth || slot.birth >= plan.window_end)
    refuse("slot.birth", slot.birth, "must lie before its death and before the end of the window");
  const Tick period = plan.window_end - plan.window_begin;
  if (slot.death > plan.window_end &&
      (slot.birth < plan.window_begin || slot.death - slot.birth > period))
    refuse("slot.death", slot.death, "may pass the end of the window by less than one period and only from inside it");
}

}  // namespace

Bytes SizeModel::bytes_at(Bytes value) const noexcept {
  if (defines) return round_up(value, kAlignment);
  // Far values stay representable; they only have to be recognised as too large.
  const double bytes = std::min(base + slope * static_cast<double>(value), static_cast<double>(kMaxArenaBytes));
  return round_up(std::max<Bytes>(static_cast<Bytes>(std::llround(bytes)), 1), kAlignment);
}

std::vector<Bytes> Plan::tolerated_bytes() const {
  constexpr double kShare = 1.0 / 4096;
  std::vector<double> weights(variable_bytes.size(), 0);
  for (const Slot& slot : slots)
    if (slot.model.variable != kNoVariable) weights[static_cast<std::size_t>(slot.model.variable)] += static_cast<double>(slot.size);
  const double lack = kShare * static_cast<double>(total_arena_bytes());
  std::vector<Bytes> tolerated = variable_bytes;
  for (std::size_t i = 0; i < tolerated.size(); ++i)
    if (weights[i] > 0) tolerated[i] += static_cast<Bytes>(static_cast<double>(tolerated[i]) * std::min(lack / weights[i], 1.0));
  return tolerated;
}

std::vector<std::int32_t> Plan::leading() const {
  std::vector<std::size_t> num_followers(variable_bytes.size(), 0);
  for (const Slot& slot : slots)
    if (slot.model.variable != kNoVariable && !slot.model.defines) ++num_followers[static_cast<std::size_t>(slot.model.variable)];
  return leading_variables(num_followers);
}

std::vector<Bytes> Plan::needed_variables(const std::vector<Bytes>& met, const std::vector<bool>& is_told) const {
  std::vector<Bytes> needed = variable_bytes;
  for (std::size_t i = 0; i < needed.size(); ++i) needed[i] = std::max(needed[i], met[i]);
  const std::vector<std::int32_t> leaders = leading();
  for (std::size_t i = 0; i < needed.size(); ++i) {
    if (leaders[i] == kNoVariable || is_told[i]) continue;
    const auto leader = static_cast<std::size_t>(leaders[i]);
    const double growth = static_cast<double>(needed[leader]) / static_cast<double>(variable_bytes[leader]);
    needed[i] = std::max(needed[i], static_cast<Bytes>(std::ceil(growth * static_cast<double>(variable_bytes[i]))));
  }
  return needed;
}

std::vector<std::int32_t> leading_variables(const std::vector<std::size_t>& num_followers) {
  constexpr std::size_t kLeastShare = 8;  // of what follows the most followed
  const std::size_t most = num_followers.empty() ? 0 : *std::max_element(num_followers.begin(), num_followers.end());
  std::vector<std::int32_t> leading;
  std::int32_t last = kNoVariable;
  for (std::size_t variable = 0; variable < num_followers.size(); ++variable) {
    const bool leads = num_followers[variable] > 0 && num_followers[variable] * kLeastShare >= most;
    if (leads) last = static_cast<std::int32_t>(variable);
    leading.push_back(leads ? kNoVariable : last);
  }
  return leading;
}

Bytes Plan::total_arena_bytes() const noexcept {
  Bytes total = 0;
  for (const Bytes bytes : arena_bytes) total += bytes;
  return total;
}

std::size_t Plan::most_alive(RoleIndex space) const {
  std::vector<Tick> births;
  std::vector<Tick> deaths;
  std::size_t always = 0;
  for (const Slot& slot : slots) {
    if (space_of(slot.role) != space) continue;
    if (slot.death > window_end) {
      ++always;
      continue;
    }
    births.push_back(slot.birth);
    deaths.push_back(slot.death);
  }
  std::sort(births.begin(), births.end());
  std::sort(deaths.begin(), deaths.end());
  std::size_t most = 0;
  std::size_t num_dead = 0;
  for (std::size_t num_born = 1; num_born <= births.size(); ++num_born) {
    while (num_dead < deaths.size() && deaths[num_dead] <= births[num_born - 1]) ++num_dead;
    if (num_born > num_dead) most = std::max(most, num_born - num_dead);
  }
  return most + always;
}

bool Plan::is_shared(RoleIndex space) const noexcept {
  return std::count(role_space.begin(), role_space.end(), space) > 1;
}

std::vector<RoleIndex> make_role_spaces(RoleIndex num_roles, bool shared) {
  std::vector<RoleIndex> spaces(static_cast<std::size_t>(std::max<RoleIndex>(num_roles, 0)), 0);
  if (!shared || num_roles > kMaxSharingRoles)
    for (std::size_t role = 0; role < spaces.size(); ++role) spaces[role] = static_cast<RoleIndex>(role);
  return spaces;
}

void check_plan(const Plan& plan) {
  check_header(plan);
  check_spaces(plan);
  std::vector<std::vector<PlacedBuffer>> by_space(static_cast<std::size_t>(plan.num_roles));
  for (const Slot& slot : plan.slots) {
    check_slot(plan, slot);
    if (slot.kind == SlotKind::kUnplanned) continue;
    auto& placed = by_space[static_cast<std::size_t>(plan.space_of(slot.role))];
    placed.push_back({slot.birth, std::min(slot.death, plan.window_end), slot.offset, slot.size});
    if (slot.death > plan.window_end)
      placed.push_back({plan.window_begin, plan.window_begin + (slot.death - plan.window_end), slot.offset, slot.size});
  }
  check_tables(plan);
  for (std::size_t space = 0; space < by_space.size(); ++space) {
    const std::string violation = find_violation(by_space[space], plan.arena_bytes[space]);
    if (!violation.empty())
      throw Error("Plan refused: space=" + std::to_string(space) + ", " + violation +
                  " Delete the plan, it will be made anew.");
  }
}

}  // namespace stalloc
