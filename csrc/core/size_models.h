// Learns how the sizes of a step's requests depend on its variables (lengths, batch sizes) from several steps.
#pragma once

#include <vector>

#include "core/plan.h"

namespace stalloc {

inline constexpr Bytes kAbsentSize = 0;  // the step has no such request

struct SizeModels {
  std::vector<SizeModel> models;      // one a request
  std::vector<bool> is_known;         // false: the size changes and follows no variable (dynamic)
  std::vector<Bytes> variable_bytes;  // the largest value met of each variable
};

// `sizes[i]` holds what request i asked for in each of the steps, in bytes as requested, or kAbsentSize, but in one
// step at least it was there. Requests are in time order: a variable is defined by the first request whose size follows
// no earlier variable. Sizes are rounded, so through few points an affine line is soon found by chance: where sizes are
// not far apart, `min_affine_points` different values are asked for. `shares_values`: what one micro-step's batch was long enough
// for, the others' are planned for too.
SizeModels fit_sizes(const std::vector<std::vector<Bytes>>& sizes, std::size_t min_affine_points = 3, bool shares_values = true);

}  // namespace stalloc
