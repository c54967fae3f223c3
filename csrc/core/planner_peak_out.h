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

// How the items alive at the peak are stacked, from the bottom.
enum class StackOrder : std::uint8_t {
  kLastDeathFirst = 0,
  kFirstBirthFirst = 1,
  kLongestFirst = 2,
  kFarthestFromPeakFirst = 3,
};
inline constexpr int kNumStackOrders = 4;

struct PeakOutStyle {
  StackOrder order = StackOrder::kLastDeathFirst;
  float fit_weight = 0.5F;      // what a doubling of the left-over counts against a doubling of the time apart
  float edge_distance = 1000.0F;  // how far in time the floor and the ceiling are taken to be
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
  void stack_peak(Offsets& offsets, Units capacity, StackOrder order) const;
  // Items that are not alive at the peak and lie ahead of it, in order of birth.
  std::vector<ItemIndex> ahead_of_peak(TimeDirection direction) const;

  const Problem& problem_;
  Instant peak_ = 0;
  std::vector<ItemIndex> at_peak_;
  std::vector<ItemIndex> after_peak_, before_peak_;
};

}  // namespace stalloc
