// Peak-out placement: what lives at the peak is stacked, then time is walked outwards in both directions.
//
// What is born after the peak and what died before it never live at once, so the two walks do not
// conflict. Each walk is an online best fit that knows how long everything lives: among the gaps that fit, it
// prefers those whose neighbour dies at about the same time, so that bytes come free together.
#pragma once

#include <cstdint>
#include <vector>

#include "core/planner_problem.h"

namespace stalloc {

// How to stack what is alive at the peak, and how to choose between gaps afterwards.
struct PeakOutStyle {
  // What lives longest is at the bottom: 1 counts the time from the peak to the death, 0 the time from the
  // birth to the peak, between them both.
  float death_weight = 1.0F;
  bool two_ended = false;         // what is older than it has still to live goes below all, the first to die lowest
  float fit_weight = 0.5F;        // what a doubling of the left-over counts against a doubling of the time apart
  float edge_distance = 1000.0F;  // how far in time the floor and the ceiling are taken to be
  float noise = 0.0F;             // of all these scores
  std::uint64_t seed = 0;         // of the noise
  Instant pivot = -1;             // walks start there instead of at the peak
  int num_retries = 0;            // at each instant where an item finds no gap
  double retry_share = 0;         // births given again in all, as a share of all births
};

// One direction of time, told in instants that ascend along it.
struct TimeDirection {
  bool backward = false;
  Instant num_instants = 0;

  Instant birth(const Item& item) const noexcept { return backward ? num_instants - item.upper : item.lower; }
  Instant death(const Item& item) const noexcept { return backward ? num_instants - item.lower : item.upper; }
};

// What does not depend on the capacity, made once a problem and used by many placements, by several threads.
class PeakOut {
 public:
  explicit PeakOut(const Problem& problem);

  // Nothing ends above `capacity`; what finds no gap stays unplaced.
  Offsets place(Units capacity, const PeakOutStyle& style) const;

 private:
  void stack(Offsets& offsets, const std::vector<ItemIndex>& movable, Units capacity) const;
  std::vector<ItemIndex> alive_at(Instant pivot) const;
  std::vector<ItemIndex> stack_order(const std::vector<ItemIndex>& alive, Instant pivot, const PeakOutStyle& style) const;
  std::vector<ItemIndex> in_order_of_birth(TimeDirection direction) const;
  // Those that are born after the pivot.
  std::vector<ItemIndex> ahead_of(Instant pivot, TimeDirection direction) const;

  const Problem& problem_;
  Instant peak_ = 0;
  std::vector<ItemIndex> by_birth_, by_death_;  // in both directions of time
};

}  // namespace stalloc
