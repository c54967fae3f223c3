// Placed items sorted by where they begin or end, in chunks so that insertion moves little.
#pragma once

#include <vector>

#include "core/planner_problem.h"

namespace stalloc {

struct Place {
  Units at = 0;  // where the item begins, or where it ends
  ItemIndex item = 0;
  Instant lower = 0;
  Instant upper = 0;
};

class SortedPlaces {
 public:
  explicit SortedPlaces(std::vector<Place> places);

  void insert(const Place& place);
  void erase(const Place& place);  // must be there
  // Writes what lives at some time in [lower, upper) to the front of `found`, in order, and returns how many. `found` only
  // grows: to clear what is beyond would cost more than finding.
  std::size_t collect(Instant lower, Instant upper, std::vector<Place>& found) const;

  static void sort(Place* begin, Place* end);

 private:
  static bool precedes(const Place& a, const Place& b) noexcept {
    return a.at != b.at ? a.at < b.at : a.item < b.item;
  }
  std::vector<Place>& chunk_of(const Place& place);

  std::vector<std::vector<Place>> chunks_;  // never none
  std::size_t size_ = 0;
};

}  // namespace stalloc
