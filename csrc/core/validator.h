// Checks placements. Shares no code with the planner, so that one mistake cannot hide in both.
#pragma once

#include <string>
#include <vector>

#include "core/types.h"

namespace stalloc {

struct PlacedBuffer {
  Tick lower = 0;
  Tick upper = 0;
  Bytes offset = 0;
  Bytes size = 0;
};

// Empty when no two buffers that live at once share a byte and all lie in [0, limit_bytes);
// else a sentence that names the first offence. O(n log n).
std::string find_violation(const std::vector<PlacedBuffer>& buffers, Bytes limit_bytes);

}  // namespace stalloc
