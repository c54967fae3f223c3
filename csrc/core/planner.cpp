#include "core/planner.h"

#include <chrono>

#include "core/planner_best_fit.h"
#include "core/planner_peak_out.h"
#include "core/planner_problem.h"

namespace stalloc {

Placement place(const std::vector<Buffer>& buffers, const std::vector<Obstacle>& obstacles,
                const PlannerOptions& options) {
  const auto started = std::chrono::steady_clock::now();
  const Problem problem = make_problem(buffers, obstacles, options.alignment);
  Offsets offsets = unplaced_offsets(problem);
  if (problem.num_movable > 0) offsets = PeakOut(problem).place(problem.lower_bound, {});
  place_rest(problem, offsets);
  Placement placement;
  placement.peak_bytes = peak_of(problem, offsets) * problem.unit_bytes;
  placement.lower_bound_bytes = problem.lower_bound * problem.unit_bytes;
  placement.optimal = placement.peak_bytes == placement.lower_bound_bytes;
  placement.method = "peak_out";
  offsets.resize(buffers.size());
  for (Units& offset : offsets) offset *= problem.unit_bytes;
  placement.offsets = std::move(offsets);
  placement.elapsed_s = std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
  return placement;
}

}  // namespace stalloc
