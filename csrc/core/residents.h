// What holds tensors whenever a batch tells its length, in a size that no length changes: parameters, accumulated gradients.
// It lies at the bottom of its space in an extent of its own, so that the rest can be exchanged for a larger one at once.
#pragma once

#include <vector>

#include "core/plan.h"

namespace stalloc {

inline constexpr Bytes kExtentGranule = Bytes{2} << 20;  // what the native allocator rounds a large request to
// An extent of its own costs a granule at most, which is nothing where either is as large as this.
inline constexpr Bytes kLeastResidentBytes = 16 * kExtentGranule;
inline constexpr Bytes kLeastArenaBytes = 512 * kExtentGranule;

// By slot. None where no batch changes any size, or where steps differ.
std::vector<bool> find_residents(const Plan& plan);

// Where the extent of residents that end at `end` ends: the granule before it stays empty, so that nothing lies across it.
inline Bytes extent_end_above(Bytes end) noexcept { return round_up(end + kAlignment, kExtentGranule); }

inline bool is_worth_apart(Bytes extent_end, Bytes arena_bytes) noexcept {
  return extent_end >= kLeastResidentBytes || arena_bytes >= kLeastArenaBytes;
}

// By space: where the residents' extent ends in a plan that has been placed; 0 where it has none.
std::vector<Bytes> resident_extents(const Plan& plan, const std::vector<bool>& residents);

}  // namespace stalloc
