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

#include "core/planner_item_sets.h"
#include "core/planner_problem.h"

namespace stalloc {

class ExactState {
 public:
  // Takes a few bits for every pair of items. The problem has no fixed items and outlives the state.
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
  bool is_full(Instant section) const noexcept { return num_unplaced_[index(section)] == 0; }
  // Whether an item still to be placed lives both then and just before.
  bool is_joined(Instant section) const noexcept { return num_joining_[index(section)] > 0; }
  // How many items may lie on its floor; of equal items only the first counts.
  int num_choices(Instant section) const;
  // They, for a section in a valley.
  void choices(Instant section, std::vector<ItemIndex>& found) const;
  // Tells states with the same items apart: what can still happen to the item follows from it.
  std::uint64_t signature(ItemIndex i) const noexcept { return signature_[index(i)]; }
  // The section where the last contradiction was found.
  Instant conflict() const noexcept { return conflict_; }
  const Offsets& offsets() const noexcept { return offsets_; }
  // Neighbours looked at so far, which is what time goes with; and how many an item has on average.
  std::int64_t num_looks() const noexcept { return num_looks_; }
  std::int64_t mean_neighbours() const noexcept { return mean_neighbours_; }

 private:
  enum class Kind : std::int32_t { kPlaced, kSupport, kLow, kFloor, kFloating };
  struct Change {
    Kind kind;
    std::int32_t index;
    Units before;
  };

  // Where items lay before they rose: a lowest offset, and the time of all that had it.
  struct Level {
    Units low;
    Instant lower;
    Instant upper;
  };

  static constexpr Instant kFloorBlock = 16;  // of sections whose floors are compared at once

  static std::size_t index(std::int32_t i) noexcept { return static_cast<std::size_t>(i); }
  void find_neighbours();
  void find_twins();
  bool is_placed(ItemIndex i) const noexcept { return offsets_[index(i)] != kUnplaced; }
  bool is_floating(ItemIndex i) const noexcept { return low_[index(i)] > support_[index(i)]; }
  // Those still to be placed, until the visitor returns false.
  template <class Visitor>
  void visit_neighbours(ItemIndex i, Visitor visitor) {
    const Word *neighbours = neighbours_.set(index(i)), *unplaced = unplaced_.set(0);
    for (std::size_t w = 0; w < neighbours_.num_words(); ++w) {
      for (Word rest = neighbours[w] & unplaced[w]; rest != 0; rest &= rest - 1) {
        ++num_looks_;
        if (!visitor(ItemSets::first(w, rest))) return;
      }
    }
  }
  void remove(ItemIndex i);
  void bring_back(ItemIndex i);
  void set_support(ItemIndex i, Units support);
  void move(ItemIndex i, Units low);
  void sign(ItemIndex i) noexcept;
  bool raise(ItemIndex i, Units low);
  void leave(ItemIndex i);
  void touch(const Level& level);
  void touch_section(Instant section);
  void set_floor(Instant section, Units floor) noexcept;
  void raise_floor(Instant section, Units floor);
  bool settle(bool fits);
  bool settle_floors();
  bool settle_floor(Instant section);
  Units lowest_of(Instant section) const;
  bool settle_floating();
  void lower_onto(Units& lowest, ItemIndex i, Units other_low, ItemIndex other) const;
  Units lowest_firm_place(ItemIndex i);
  Units lowest_support_beside(ItemIndex i, Instant section);

  const Problem& problem_;
  Units capacity_;
  Offsets offsets_;
  std::vector<Units> support_;  // by item: the highest end of what is placed and lives with it
  std::vector<Units> low_;      // by item: no offset below it is possible; above the support it is floating
  std::vector<std::uint64_t> signature_;
  std::vector<ItemIndex> next_twin_;  // the item after it that is equal, or -1
  // Rows of bits: by item what lives at some time with it, and by section what lives then and is still to be placed.
  ItemSets neighbours_, members_;
  ItemSets unplaced_, waiting_;  // one set each: those whose twin is still to be placed come after it
  ItemLevels levels_;
  std::vector<Units> floor_;              // by section
  std::vector<std::uint32_t> floor_half_;  // their low halves, and a block more
  std::vector<Units> unplaced_size_;
  std::vector<ItemIndex> num_joining_, num_unplaced_;
  std::vector<ItemIndex> floating_;  // some may have been placed or supported since
  std::vector<ItemIndex> held_;                      // while settling: where they float something holds them
  std::vector<std::pair<Units, ItemIndex>> afloat_;  // while settling: the others, with the lowest places found
  std::vector<Change> trail_;
  std::vector<Level> left_;  // since floors were settled
  std::vector<Instant> touched_;
  std::vector<char> is_touched_;
  Instant conflict_ = 0;
  std::int64_t num_looks_ = 0, mean_neighbours_ = 0;
};

}  // namespace stalloc
