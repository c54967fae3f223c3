// Places buffers with known lifetimes so that the peak address is small (dynamic storage allocation, offline).
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "core/types.h"

namespace stalloc {

// Alive in the half-open span [lower, upper); size in bytes.
struct Buffer {
  Tick lower = 0;
  Tick upper = 0;
  Bytes size = 0;
};

// A range that is taken: a buffer whose place is given. Ranges may overlap each other.
struct Obstacle {
  Tick lower = 0;
  Tick upper = 0;
  Bytes offset = 0;
  Bytes size = 0;
};

struct PlannerOptions {
  Bytes alignment = 1;        // offsets and sizes are rounded up to it
  double deadline_s = 1.0;    // improvement stops here; the first answer is always finished
  Bytes capacity = 0;         // > 0: stop at the first placement that fits below it, or when there is proved to be none
  double tolerance = 0;       // a peak that is this share above the lower bound is good enough
  int num_threads = 1;
  std::uint64_t seed = 7;
  const std::atomic<bool>* cancelled = nullptr;  // polled; the best answer so far is returned
};

struct Placement {
  std::vector<Bytes> offsets;  // one a buffer, in input order
  Bytes peak_bytes = 0;         // the highest end of a buffer or an obstacle
  Bytes lower_bound_bytes = 0;  // the most that lives at once, or the highest end of an obstacle
  Bytes proved_bound_bytes = 0;  // no placement has a smaller peak; the lower bound, or more where a search showed it
  bool optimal = false;         // the peak is the proved bound
  double elapsed_s = 0;
  std::string method;
};

// Throws Error on an empty or inverted lifetime, a size <= 0, or sums that overflow.
Placement place(const std::vector<Buffer>& buffers, const std::vector<Obstacle>& obstacles,
                const PlannerOptions& options);

}  // namespace stalloc
