// Placed items sorted by where they begin or end, in chunks so that insertion moves little.
#pragma once

#include <vector>

#include "core/planner_problem.h"

namespace stalloc {

struct Place {
  Units begin = 0;
  Units end = 0;
  Instant lower = 0;
  Instant upper = 0;
  ItemIndex item = 0;
};

enum class PlaceOrder : std::uint8_t { kByBegin, kByEnd };

class SortedPlaces {
 public:
  SortedPlaces(PlaceOrder order, std::vector<Place> places);

  void insert(const Place& place);
  void erase(const Place& place);  // must be there
  // Appends what lives at some time in [lower, upper), in order.
  void collect(Instant lower, Instant upper, std::vector<Place>& found) const;

  static void sort(PlaceOrder order, std::vector<Place>& places);

 private:
  static bool precedes(PlaceOrder order, const Place& a, const Place& b) noexcept {
    const Units key_a = order == PlaceOrder::kByBegin ? a.begin : a.end;
    const Units key_b = order == PlaceOrder::kByBegin ? b.begin : b.end;
    return key_a != key_b ? key_a < key_b : a.item < b.item;
  }
  std::vector<Place>& chunk_of(const Place& place);

  PlaceOrder order_;
  std::vector<std::vector<Place>> chunks_;  // never none
};

}  // namespace stalloc
