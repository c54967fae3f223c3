#include "core/planner_sorted_places.h"

#include <algorithm>

namespace stalloc {
namespace {

constexpr std::size_t kChunk = 256;  // split at twice this

}  // namespace

void SortedPlaces::sort(Place* begin, Place* end) { std::sort(begin, end, precedes); }

SortedPlaces::SortedPlaces(std::vector<Place> places) : size_(places.size()) {
  sort(places.data(), places.data() + places.size());
  for (std::size_t begin = 0; begin < places.size(); begin += kChunk) {
    const std::size_t end = std::min(places.size(), begin + kChunk);
    chunks_.emplace_back(places.begin() + static_cast<std::ptrdiff_t>(begin),
                         places.begin() + static_cast<std::ptrdiff_t>(end));
  }
  if (chunks_.empty()) chunks_.emplace_back();
}

// The first chunk whose last place does not precede `place`, else the last chunk.
std::vector<Place>& SortedPlaces::chunk_of(const Place& place) {
  const auto chunk =
      std::lower_bound(chunks_.begin(), chunks_.end() - 1, place, [](const std::vector<Place>& c, const Place& p) {
        return precedes(c.back(), p);
      });
  return *chunk;
}

void SortedPlaces::insert(const Place& place) {
  std::vector<Place>& chunk = chunk_of(place);
  const auto at = std::lower_bound(chunk.begin(), chunk.end(), place, precedes);
  ++size_;
  chunk.insert(at, place);
  if (chunk.size() < 2 * kChunk) return;
  std::vector<Place> upper_half(chunk.begin() + kChunk, chunk.end());
  chunk.resize(kChunk);
  chunks_.insert(chunks_.begin() + (&chunk - chunks_.data()) + 1, std::move(upper_half));
}

void SortedPlaces::erase(const Place& place) {
  std::vector<Place>& chunk = chunk_of(place);
  chunk.erase(std::lower_bound(chunk.begin(), chunk.end(), place, precedes));
  --size_;
  if (chunk.empty() && chunks_.size() > 1) chunks_.erase(chunks_.begin() + (&chunk - chunks_.data()));
}

std::size_t SortedPlaces::collect(Instant lower, Instant upper, std::vector<Place>& found) const {
  if (found.size() <= size_) found.resize(size_ + 1);  // one spare: every place is written, only those found are kept
  std::size_t count = 0;
  for (const std::vector<Place>& chunk : chunks_) {
    for (const Place& place : chunk) {
      found[count] = place;
      // No branch: which places live then is as good as random.
      count += static_cast<std::size_t>(static_cast<int>(place.lower < upper) & static_cast<int>(lower < place.upper));
    }
  }
  return count;
}

}  // namespace stalloc
