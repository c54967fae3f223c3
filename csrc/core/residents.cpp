#include "core/residents.h"

#include <algorithm>

namespace stalloc {
namespace {

// When a batch tells its length: the births of the requests that tell it.
std::vector<Tick> moments_of(const Plan& plan) {
  const std::vector<std::int32_t> leading = plan.leading();
  std::vector<Tick> moments;
  for (const Slot& slot : plan.slots)
    if (slot.model.defines && leading[static_cast<std::size_t>(slot.model.variable)] == kNoVariable) moments.push_back(slot.birth);
  std::sort(moments.begin(), moments.end());
  return moments;
}

bool has_any(const std::vector<Tick>& moments, Tick after, Tick before) {
  const auto at = std::upper_bound(moments.begin(), moments.end(), after);
  return at != moments.end() && *at < before;
}

}  // namespace

std::vector<bool> find_residents(const Plan& plan) {
  std::vector<bool> residents(plan.slots.size(), false);
  if (std::any_of(plan.slots.begin(), plan.slots.end(), [](const Slot& slot) { return slot.kind == SlotKind::kRoom; })) return residents;
  const std::vector<Tick> moments = moments_of(plan);
  if (moments.empty()) return residents;
  const Tick period = plan.window_end - plan.window_begin;
  for (std::size_t i = 0; i < residents.size(); ++i) {
    const Slot& slot = plan.slots[i];
    if (slot.kind == SlotKind::kUnplanned || slot.model.variable != kNoVariable) continue;
    residents[i] = slot.kind == SlotKind::kPersistent || has_any(moments, slot.birth, slot.death) ||
                   (slot.death > plan.window_end && has_any(moments, plan.window_begin - 1, slot.death - period));
  }
  return residents;
}

std::vector<Bytes> resident_extents(const Plan& plan, const std::vector<bool>& residents) {
  std::vector<Bytes> ends(static_cast<std::size_t>(plan.num_roles), 0);
  for (std::size_t i = 0; i < residents.size(); ++i) {
    if (!residents[i]) continue;
    Bytes& end = ends[static_cast<std::size_t>(plan.space_of(plan.slots[i].role))];
    end = std::max(end, plan.slots[i].offset + plan.slots[i].size);
  }
  for (std::size_t space = 0; space < ends.size(); ++space) {
    if (ends[space] > 0) ends[space] = extent_end_above(ends[space]);
    if (!is_worth_apart(ends[space], plan.arena_bytes[space]) || ends[space] >= plan.arena_bytes[space]) ends[space] = 0;
  }
  for (const Slot& slot : plan.slots) {
    if (slot.kind == SlotKind::kUnplanned) continue;
    Bytes& end = ends[static_cast<std::size_t>(plan.space_of(slot.role))];
    if (slot.offset < end && slot.offset + slot.size > end - kAlignment) end = 0;
  }
  return ends;
}

}  // namespace stalloc
