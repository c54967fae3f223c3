// The longest common subsequence of two long, similar sequences.
#pragma once

#include <cstdint>
#include <vector>

namespace stalloc {

// For each element of `from`, the index in `to` that it corresponds to, or -1; indices rise. Equal elements are
// paired from the back, so that a prefix that only `from` has stays unpaired. All -1 when more than `max_edits`
// insertions and deletions part the two. O((n + m) d) time, O(d^2) memory for d edits.
// Source: E. Myers, "An O(ND) difference algorithm and its variations", Algorithmica 1986.
std::vector<std::int64_t> align(const std::vector<std::int64_t>& from, const std::vector<std::int64_t>& to,
                                std::int64_t max_edits);

}  // namespace stalloc
