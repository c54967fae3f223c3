// Makes a partial placement whole under a capacity: an item that has no place takes the one that costs least
// and drives out who is there, until nobody is left without a place.
//
// The cost of driving an item out is its area (size times life), which tells how hard it is to place again, and
// grows with the cost of what it drives out itself; that keeps two items from driving each other out for
// ever. When a chain of moves leads nowhere, all is put back as it was at the best moment; the costs are kept, so
// that the next chain goes another way.
#pragma once

#include <vector>

#include "core/planner_deadline.h"
#include "core/planner_problem.h"
#include "core/planner_random.h"
#include "core/planner_sorted_places.h"
#include "core/planner_timeline.h"

namespace stalloc {

struct RepairEffort {
  int patience = 60;       // moves without a new best before all is put back
  int num_restores = 10;   // times it is put back before giving up
};

class Repair {
 public:
  // Items that end above `capacity` lose their places first.
  Repair(const Problem& problem, const Timeline& timeline, Offsets offsets, Units capacity,
         const RepairEffort& effort, std::uint64_t seed);

  // Whether all items have places now. When not, offsets() is the best partial placement seen.
  bool run(const Deadline& deadline);

  const Offsets& offsets() const noexcept { return offsets_; }
  double unplaced_area() const noexcept { return unplaced_area_; }  // in mean areas of an item
  std::int64_t num_moves() const noexcept { return num_moves_; }

 private:
  struct Target {
    Units offset = kUnplaced;
    double cost = 0;
    bool is_free = false;
  };

  // What lies at an offset looked at; slides upwards.
  struct Window {
    std::size_t entering = 0;  // into begins_in_way_
    std::size_t leaving = 0;   // into ends_in_way_
    double cost = 0;
    int num_inside = 0;
    int num_fixed_inside = 0;
  };

  Place begin_of(ItemIndex i) const;
  Place end_of(ItemIndex i) const;
  std::vector<Place> begins() const;
  std::vector<Place> ends() const;
  void collect_in_the_way(ItemIndex i);
  double cost_of(ItemIndex i) const { return cost_[static_cast<std::size_t>(i)]; }
  ItemIndex pick_unplaced();
  Target find_target(ItemIndex i);
  void look_at(Units offset, Units size, Window& window, Target& best);
  void move(ItemIndex i);
  void put(ItemIndex i, Units offset);  // kUnplaced takes it away
  void restore();

  const Problem& problem_;
  const Timeline& timeline_;
  Offsets offsets_;
  Units capacity_;
  RepairEffort effort_;
  Random random_;
  std::vector<double> area_, cost_;
  SortedPlaces by_begin_, by_end_;
  std::vector<Place> begins_in_way_, ends_in_way_;  // what lives while the item at hand does: the first num_in_way_
  std::size_t num_in_way_ = 0;
  std::vector<ItemIndex> unplaced_;
  std::vector<ItemIndex> unplaced_at_;  // by item: its index in unplaced_
  double unplaced_area_ = 0;
  std::vector<std::pair<ItemIndex, Units>> undo_;  // since the best moment: item, offset before
  std::int64_t num_moves_ = 0;
};

}  // namespace stalloc
