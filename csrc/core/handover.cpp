#include "core/handover.h"

#include <algorithm>
#include <cstdint>
#include <memory>

namespace stalloc {
namespace {

constexpr std::size_t kMaxCells = std::size_t{1} << 26;  // pages times roles that are followed

struct Moment {
  Tick tick = 0;
  bool is_birth = false;  // deaths of the same tick come first
  std::size_t slot = 0;
};

// Plays a plan's turn as a run does: a claim waits for the latest free that another role made in its pages, unless its stream
// has waited for a later one before.
class SpaceFollower {
 public:
  SpaceFollower(const Plan& plan, RoleIndex space) : plan_(plan), local_(plan.role_space.size(), 0) {
    for (std::size_t role = 0; role < plan.role_space.size(); ++role)
      if (plan.role_space[role] == space) local_[role] = num_roles_++;
    waited_.assign(static_cast<std::size_t>(num_roles_), 0);
    bytes_ = plan.arena_bytes[static_cast<std::size_t>(space)] + kHandoverPage;
  }

  bool is_too_large() const noexcept { return static_cast<std::size_t>(bytes_ / kHandoverPage) > kMaxCells / static_cast<std::size_t>(num_roles_); }
  void make_room() { frees_ = std::make_unique<LastFrees>(bytes_, num_roles_); }

  void free(std::size_t slot) {
    slot_of_.push_back(slot);
    const auto number = static_cast<std::uint32_t>(slot_of_.size());  // of the free, from 1
    frees_->note(plan_.slots[slot].offset, plan_.slots[slot].size, local_role(slot), number);
  }

  void claim(std::size_t slot, std::vector<bool>& hands_over) {
    const RoleIndex own = local_role(slot);
    std::uint32_t& waited = waited_[static_cast<std::size_t>(own)];
    const std::uint32_t latest = frees_->latest_foreign(plan_.slots[slot].offset, plan_.slots[slot].size, own, waited);
    if (latest <= waited) return;
    waited = latest;
    hands_over[slot_of_[latest - 1]] = true;
  }

 private:
  RoleIndex local_role(std::size_t slot) const { return local_[static_cast<std::size_t>(plan_.slots[slot].role)]; }

  const Plan& plan_;
  std::vector<RoleIndex> local_;  // by role: its number within the space
  RoleIndex num_roles_ = 0;
  Bytes bytes_ = 0;
  std::unique_ptr<LastFrees> frees_;   // by local role
  std::vector<std::uint32_t> waited_;  // by role: the latest free that its stream has waited for
  std::vector<std::size_t> slot_of_;   // by number of the free
};

std::vector<Moment> moments_of(const Plan& plan, RoleIndex space) {
  std::vector<Moment> moments;
  for (std::size_t i = 0; i < plan.slots.size(); ++i) {
    const Slot& slot = plan.slots[i];
    if (slot.kind == SlotKind::kUnplanned || plan.space_of(slot.role) != space) continue;
    moments.push_back({slot.birth, true, i});
    const bool is_cyclic = slot.death > plan.window_end;
    moments.push_back({is_cyclic ? slot.death - plan.window_end + plan.window_begin : slot.death, false, i});
  }
  std::sort(moments.begin(), moments.end(), [](const Moment& a, const Moment& b) {
    return a.tick != b.tick ? a.tick < b.tick : a.is_birth < b.is_birth;
  });
  return moments;
}

}  // namespace

std::vector<bool> find_handovers(const Plan& plan) {
  std::vector<bool> hands_over(plan.slots.size(), false);
  for (RoleIndex space = 0; space < plan.num_roles; ++space) {
    if (!plan.is_shared(space)) continue;
    SpaceFollower follower(plan, space);
    if (follower.is_too_large()) continue;
    follower.make_room();
    const std::vector<Moment> moments = moments_of(plan, space);
    for (int turn = 0; turn < 2; ++turn)  // the second begins with what the first left behind
      for (const Moment& moment : moments) {
        if (turn > 0 && moment.tick < plan.window_begin) continue;
        if (moment.is_birth) follower.claim(moment.slot, hands_over);
        else follower.free(moment.slot);
      }
  }
  return hands_over;
}

}  // namespace stalloc
