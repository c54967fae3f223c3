// A walk through time that gives each newborn item a gap between the items alive then.
//
// Where an item finds none, the walk goes back some way and comes again with other noise, a few times, before
// it leaves the item out: a way past one tight instant is much easier to find than a way past all of them.
#pragma once

#include <vector>

#include "core/planner_peak_out.h"
#include "core/planner_random.h"

namespace stalloc {

class Walk {
 public:
  Walk(const Problem& problem, TimeDirection direction, Units capacity, const PeakOutStyle& style,
       Offsets& offsets);

  // Starts with `alive` (those that have offsets), then gives births in order. `births` are sorted by birth.
  void run(const std::vector<ItemIndex>& alive, const std::vector<ItemIndex>& births);

 private:
  // Free addresses; the neighbours are items or kEdge. Sorted by address, never empty.
  struct Gap {
    Units begin = 0;
    Units end = 0;
    ItemIndex below = 0;
    ItemIndex above = 0;
  };
  struct Choice {
    Units offset = kUnplaced;
    float score = 0;
  };

  bool step(ItemIndex born);  // false: no gap
  void start(const std::vector<ItemIndex>& alive);
  // Makes ready to give birth to births[k] again, `k` being some number of births before `failed`.
  std::size_t go_back(const std::vector<ItemIndex>& births, std::size_t failed);
  void release(ItemIndex dead);
  void occupy(ItemIndex born, Units offset);
  Units choose(ItemIndex born);
  void score_gap(ItemIndex born, const Gap& gap, Choice& best);
  // Cuts the gap by what is fixed and born before `born` dies; the parts are scored one by one.
  void score_cut_gap(ItemIndex born, const Gap& gap, Choice& best);
  void find_fixed_ahead(ItemIndex born);
  float time_apart(ItemIndex neighbour, Instant death) const;

  const Problem& problem_;
  const TimeDirection direction_;
  const Units capacity_;
  const PeakOutStyle style_;
  Offsets& offsets_;
  Random random_;
  std::vector<Gap> gaps_;
  std::vector<ItemIndex> below_, above_;   // neighbours of the items alive, by address
  std::vector<ItemIndex> deaths_;          // a heap: who dies first
  std::vector<std::vector<ItemIndex>> alive_at_;  // before every kSnapshotSpacing-th birth
  float noise_;
  int num_retries_ = 0;  // since the walk got further than ever before
  std::vector<ItemIndex> fixed_by_birth_;
  std::vector<std::pair<Units, Units>> fixed_ahead_;  // sorted; those born while the item at hand lives
};

}  // namespace stalloc
