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
  // What lives at some time in [lower, upper), in order; replaces what `found` held.
  void collect(Instant lower, Instant upper, std::vector<Place>& found) const;

  static void sort(std::vector<Place>& places);

 private:
  static bool precedes(const Place& a, const Place& b) noexcept {
    return a.at != b.at ? a.at < b.at : a.item < b.item;
  }
  std::vector<Place>& chunk_of(const Place& place);

  std::vector<std::vector<Place>> chunks_;  // never none
  std::size_t size_ = 0;
};

}  // namespace stalloc
