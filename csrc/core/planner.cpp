#include "core/planner.h"

#include <algorithm>
#include <memory>
#include <thread>

#include "core/planner_deadline.h"
#include "core/planner_problem.h"
#include "core/planner_search.h"

namespace stalloc {
namespace {

// Threads wait for each other after each turn; attempts at a small component are too unequal to wait after every one.
constexpr std::size_t kAttemptsWhenSmall = 3;

using Searches = std::vector<std::unique_ptr<ComponentSearch>>;

// Runs task(0) .. task(count - 1) on some threads, the calling one among them. What each does must not depend on
// which thread it runs on, so that results depend on the seed and the number of threads only.
template <class Task>
void run_tasks(std::size_t count, int num_threads, Task task) {
  std::atomic<std::size_t> next{0};
  auto work = [&] {
    for (std::size_t k = next++; k < count; k = next++) task(k);
  };
  std::vector<std::thread> threads;
  const std::size_t helpers = std::min(count, static_cast<std::size_t>(std::max(1, num_threads))) - 1;
  for (std::size_t k = 0; k < helpers; ++k) threads.emplace_back(work);
  work();
  for (std::thread& thread : threads) thread.join();
}

Searches start_searches(const Problem& problem, Units goal, const PlannerOptions& options) {
  const std::vector<ComponentSpan> spans = find_components(problem);
  Searches searches(spans.size());
  if (spans.empty()) return searches;
  run_tasks(spans.size(), options.num_threads, [&](std::size_t k) {
    searches[k] = std::make_unique<ComponentSearch>(make_component(problem, spans[k]), goal, options.seed + k);
    searches[k]->find_first_answer();
  });
  return searches;
}

// Of a turn's attempts: the components with the highest peaks, as many as there are threads; when fewer fall short of the
// goal, the worst gets several attempts at once. All of them again and again where several threads share small ones.
std::vector<ComponentSearch*> choose_searches(const Searches& searches, Units bound, std::size_t count) {
  std::vector<ComponentSearch*> chosen;
  for (const auto& search : searches) {
    if (!search->is_done(bound)) chosen.push_back(search.get());
  }
  std::stable_sort(chosen.begin(), chosen.end(),
                   [](const ComponentSearch* a, const ComponentSearch* b) { return a->peak() > b->peak(); });
  const std::size_t num_short = std::min(chosen.size(), count);
  chosen.resize(num_short);
  if (num_short == 0) return chosen;
  for (std::size_t k = 0; chosen.size() < count; ++k) chosen.push_back(chosen[k % num_short]);
  const bool are_small = std::all_of(chosen.begin(), chosen.end(), [](const ComponentSearch* search) { return search->is_small(); });
  while (are_small && count > 1 && chosen.size() < kAttemptsWhenSmall * count) chosen.push_back(chosen[chosen.size() - count]);
  return chosen;
}

// What no placement of all components can do without.
Units proved_bound(const Problem& problem, const Searches& searches) {
  Units bound = problem.lower_bound;
  for (const auto& search : searches) bound = std::max(bound, search->proved_bound());
  return bound;
}

// Attempts are started in order. Once one settles its search, only those of the first wave, one a thread, are still
// started; results behind the first that settles are not looked at, as chance decides which of them there are.
void carry_out_turn(const std::vector<ComponentSearch*>& chosen, std::size_t first_wave, Units bound, int num_threads,
                    const Deadline& deadline) {
  std::vector<Attempt> attempts;
  for (ComponentSearch* search : chosen) attempts.push_back(search->plan_attempt());
  std::vector<AttemptResult> results(chosen.size());
  std::atomic<bool> is_settled{false};
  const auto settles = [&](std::size_t k) { return results[k].is_infeasible || chosen[k]->is_good(results[k].peak, bound); };
  run_tasks(chosen.size(), num_threads, [&](std::size_t k) {
    if (k >= first_wave && (is_settled || deadline.is_over())) return;
    results[k] = chosen[k]->carry_out(attempts[k], deadline);
    if (settles(k)) is_settled = true;
  });
  bool has_settled = false;
  for (std::size_t k = 0; k < chosen.size() && (k < first_wave || !has_settled); ++k) {
    has_settled = has_settled || settles(k);
    chosen[k]->learn(attempts[k], std::move(results[k]));
  }
}

void improve(const Problem& problem, const Searches& searches, const PlannerOptions& options,
             const Deadline& deadline) {
  const auto count = static_cast<std::size_t>(std::max(1, options.num_threads));
  while (!deadline.is_over()) {
    const Units bound = proved_bound(problem, searches);
    if (options.capacity > 0 && options.capacity < bound * problem.unit_bytes) return;
    const std::vector<ComponentSearch*> chosen = choose_searches(searches, bound, count);
    if (chosen.empty()) return;
    carry_out_turn(chosen, count, bound, options.num_threads, deadline);
  }
}

void collect(const Searches& searches, Placement& placement, Bytes unit_bytes) {
  for (const auto& search : searches) {
    const std::vector<ItemIndex>& origin = search->origin();
    for (std::size_t i = 0; i < origin.size(); ++i) {
      placement.offsets[static_cast<std::size_t>(origin[i])] = search->offsets()[i] * unit_bytes;
    }
  }
}

const char* method_of_highest(const Searches& searches) {
  const auto highest = std::max_element(searches.begin(), searches.end(),
                                        [](const auto& a, const auto& b) { return a->peak() < b->peak(); });
  return highest == searches.end() ? "peak_out" : (*highest)->method();
}

}  // namespace

Placement place(const std::vector<Buffer>& buffers, const std::vector<Obstacle>& obstacles,
                const PlannerOptions& options) {
  const Deadline deadline(options.deadline_s, options.cancelled);
  const Problem problem = make_problem(buffers, obstacles, options.alignment);
  const auto good_enough = problem.lower_bound + static_cast<Units>(static_cast<double>(problem.lower_bound) * options.tolerance);
  const Units goal = std::max(good_enough, options.capacity / problem.unit_bytes);
  const Searches searches = start_searches(problem, goal, options);
  improve(problem, searches, options, deadline);
  Placement placement;
  placement.offsets.resize(buffers.size());
  collect(searches, placement, problem.unit_bytes);
  Units peak = peak_of(problem, unplaced_offsets(problem));
  for (const auto& search : searches) peak = std::max(peak, search->peak());
  placement.peak_bytes = peak * problem.unit_bytes;
  placement.lower_bound_bytes = problem.lower_bound * problem.unit_bytes;
  placement.proved_bound_bytes = proved_bound(problem, searches) * problem.unit_bytes;
  placement.optimal = placement.peak_bytes == placement.proved_bound_bytes;
  placement.method = method_of_highest(searches);
  placement.elapsed_s = deadline.elapsed_s();
  return placement;
}

}  // namespace stalloc
