// Learns how the sizes of a step's requests depend on its variables (lengths, batch sizes) from several steps.
#pragma once

#include <vector>

#include "core/plan.h"

namespace stalloc {

struct SizeModels {
  std::vector<SizeModel> models;      // one a request
  std::vector<bool> is_known;         // false: the size changes and follows no variable (dynamic)
  std::vector<Bytes> variable_bytes;  // the largest value met of each variable
};

// `sizes[i]` holds what request i asked for in each of the steps, in bytes as requested. Requests are in time
// order: a variable is defined by the first request whose size follows no earlier variable.
SizeModels fit_sizes(const std::vector<std::vector<Bytes>>& sizes);

}  // namespace stalloc
