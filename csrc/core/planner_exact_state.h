// A partial placement that grows from the bottom, with what follows from it, for the exact search.
//
// Of all placements below a capacity only those matter where nothing can sink: each item lies on the floor or on
// another item. A section is an instant; its floor is the lowest offset that any item still to be placed there can
// have. Where the floor is lower than on both sides (a valley), the items that could lie right on it and the case
// that none does (the floor stays empty there) tell all such placements apart, each exactly once.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "core/planner_problem.h"

namespace stalloc {

class ExactState {
 public:
  // Quadratic in what lives at once. The problem has no fixed items and outlives the state.
  ExactState(const Problem& problem, Units capacity);

  // Each returns false when the capacity cannot be kept any more; undo() has to follow then.
  bool place(ItemIndex i);              // on its floor
  bool leave_empty(Instant section);    // nothing begins at the floor of this section
  std::size_t mark() const noexcept { return trail_.size(); }
  void undo(std::size_t mark);

  Units floor(Instant section) const noexcept { return floor_[index(section)]; }
  // Bytes of the section that may stay empty above its floor; negative means that the capacity is too small.
  Units slack(Instant section) const noexcept {
    return capacity_ - floor_[index(section)] - unplaced_size_[index(section)];
  }
  bool is_full(Instant section) const noexcept { return num_members_[index(section)] == 0; }
  // Whether an item still to be placed lives both then and just before.
  bool is_joined(Instant section) const noexcept { return num_joining_[index(section)] > 0; }
  // How many items may lie on its floor; of equal items only the first counts.
  Units num_choices(Instant section);
  // They, for a section in a valley.
  void choices(Instant section, std::vector<ItemIndex>& found) const;
  // Tells states with the same items apart: what can still happen to the item follows from it.
  std::uint64_t signature(ItemIndex i) const noexcept { return signature_[index(i)]; }
  // The section where the last contradiction was found.
  Instant conflict() const noexcept { return conflict_; }
  const Offsets& offsets() const noexcept { return offsets_; }
  // Neighbours looked at so far, which is what time goes with; and how many an item has on average.
  std::int64_t num_looks() const noexcept { return num_looks_; }
  std::int64_t mean_neighbours() const noexcept {
    return static_cast<std::int64_t>(neighbours_.size() / std::max<std::size_t>(1, offsets_.size()));
  }

 private:
  enum class Kind : std::int32_t { kPlaced, kSupport, kLow, kFloor, kNumChoices, kFloating };
  struct Change {
    Kind kind;
    std::int32_t index;
    Units before;
  };

  static std::size_t index(std::int32_t i) noexcept { return static_cast<std::size_t>(i); }
  void list_members();
  void list_neighbours();
  void find_twins();
  bool is_placed(ItemIndex i) const noexcept { return offsets_[index(i)] != kUnplaced; }
  bool is_floating(ItemIndex i) const noexcept { return low_[index(i)] > support_[index(i)]; }
  bool waits_for_twin(ItemIndex i) const noexcept { return twin_[index(i)] >= 0 && !is_placed(twin_[index(i)]); }
  void remove(ItemIndex i);
  void bring_back(ItemIndex i);
  void set(Kind kind, std::int32_t i, Units value);
  void sign(ItemIndex i) noexcept;
  bool raise(ItemIndex i, Units low);
  void touch(ItemIndex i);
  void touch_section(Instant section);
  void set_floor(Instant section, Units floor) noexcept;
  void raise_floor(Instant section, Units floor);
  bool settle(bool fits);
  bool settle_floors();
  bool settle_floor(Instant section);
  bool settle_floating();
  Units lowest_firm_place(ItemIndex i);
  Units lowest_support_beside(ItemIndex i, Instant section);

  const Problem& problem_;
  Units capacity_;
  Offsets offsets_;
  std::vector<Units> support_;  // by item: the highest end of what is placed and lives with it
  std::vector<Units> low_;      // by item: no offset below it is possible; above the support it is floating
  std::vector<std::uint64_t> signature_;
  std::vector<ItemIndex> twin_;  // the item before it that is equal, or -1
  std::vector<ItemIndex> neighbours_;
  std::vector<std::size_t> neighbours_begin_;
  std::vector<Units> floor_;              // by section
  std::vector<std::uint32_t> floor_half_;  // their low halves, and a block more
  std::vector<Units> unplaced_size_;
  std::vector<Units> num_choices_;            // by section; counted when asked for
  std::vector<ItemIndex> num_joining_, num_members_;
  // By section the items that live then, those still to be placed first; and where each item is there.
  std::vector<ItemIndex> members_;
  std::vector<std::size_t> members_begin_, entry_begin_, entry_;
  std::vector<ItemIndex> floating_;  // some may have been placed or supported since
  std::vector<std::pair<Units, ItemIndex>> afloat_;  // while settling
  std::vector<Change> trail_;
  std::vector<Instant> touched_;
  std::vector<char> is_touched_;
  Instant conflict_ = 0;
  std::int64_t num_looks_ = 0;
};

}  // namespace stalloc
