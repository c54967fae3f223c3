#include "core/alignment.h"

#include <algorithm>

namespace stalloc {
namespace {

// How far along `from` each diagonal (from index - to index) got with a given number of edits; both read backwards.
class Frontier {
 public:
  explicit Frontier(std::int64_t num_edits)
      : num_edits_(num_edits), reach_(static_cast<std::size_t>(2 * num_edits + 1), -1) {}
  std::int64_t& at(std::int64_t diagonal) { return reach_[static_cast<std::size_t>(diagonal + num_edits_)]; }
  std::int64_t get(std::int64_t diagonal) const {
    return diagonal < -num_edits_ || diagonal > num_edits_ ? -1 : reach_[static_cast<std::size_t>(diagonal + num_edits_)];
  }

 private:
  std::int64_t num_edits_;
  std::vector<std::int64_t> reach_;
};

// The step that leads furthest onto a diagonal: skipping an element of `from` or one of `to`.
bool skips_from(const Frontier& before, std::int64_t diagonal) {
  return before.get(diagonal - 1) >= 0 && before.get(diagonal - 1) + 1 > before.get(diagonal + 1);
}

}  // namespace

std::vector<std::int64_t> align(const std::vector<std::int64_t>& from, const std::vector<std::int64_t>& to,
                                std::int64_t max_edits) {
  const auto n = static_cast<std::int64_t>(from.size());
  const auto m = static_cast<std::int64_t>(to.size());
  std::vector<std::int64_t> pairs(from.size(), -1);
  std::vector<Frontier> frontiers;
  const auto slide = [&](std::int64_t x, std::int64_t diagonal) {
    while (x < n && x - diagonal < m && from[static_cast<std::size_t>(n - 1 - x)] == to[static_cast<std::size_t>(m - 1 - (x - diagonal))]) ++x;
    return x;
  };
  std::int64_t edits = 0;
  for (bool is_done = false; !is_done; ++edits) {
    if (edits > max_edits) return pairs;
    Frontier frontier(edits);
    for (std::int64_t diagonal = -edits; diagonal <= edits && !is_done; diagonal += 2) {
      std::int64_t x = 0;
      if (edits > 0) x = skips_from(frontiers.back(), diagonal) ? frontiers.back().get(diagonal - 1) + 1 : frontiers.back().get(diagonal + 1);
      if (x < 0 || x > n || x - diagonal > m || x < diagonal) continue;
      frontier.at(diagonal) = slide(x, diagonal);
      is_done = frontier.at(diagonal) == n && frontier.at(diagonal) - diagonal == m;
    }
    frontiers.push_back(std::move(frontier));
  }
  // Walk back and pair what the slides passed.
  std::int64_t x = n;
  std::int64_t diagonal = n - m;
  for (std::int64_t d = edits - 1; d >= 0; --d) {
    std::int64_t start = 0;
    std::int64_t previous = diagonal;
    if (d > 0) {
      const Frontier& before = frontiers[static_cast<std::size_t>(d - 1)];
      previous = skips_from(before, diagonal) ? diagonal - 1 : diagonal + 1;
      start = previous < diagonal ? before.get(previous) + 1 : before.get(previous);
    }
    for (; x > start; --x)
      pairs[static_cast<std::size_t>(n - x)] = m - (x - diagonal);
    x = previous < diagonal ? start - 1 : start;
    diagonal = previous;
  }
  return pairs;
}

}  // namespace stalloc
