#include "core/planner_problem.h"

#include <algorithm>
#include <string>

#include "core/planner_obstacles.h"

namespace stalloc {
namespace {

constexpr Bytes kMaxBytes = std::numeric_limits<Bytes>::max() / 4;

[[noreturn]] void refuse(const std::string& name, std::int64_t value, const std::string& rule) {
  throw Error("plan a placement: " + name + "=" + std::to_string(value) + ", " + rule);
}

std::string indexed(const char* name, std::size_t index) {
  return std::string(name) + "[" + std::to_string(index) + "]";
}

void check_lifetime(const char* names, std::size_t index, Tick lower, Tick upper) {
  if (lower < upper) return;
  refuse(indexed(names, index) + ".lower", lower,
         "must be less than upper=" + std::to_string(upper) + ". Give half-open lifetimes that are not empty.");
}

void check_range(const std::string& name, Bytes value, Bytes least) {
  if (value >= least && value <= kMaxBytes) return;
  refuse(name, value,
         "must lie in [" + std::to_string(least) + ", " + std::to_string(kMaxBytes) + "]. Give it in bytes.");
}

// Births that start a run of births between which nothing dies, sorted.
std::vector<Tick> find_runs(const std::vector<Buffer>& buffers, const std::vector<Obstacle>& obstacles) {
  std::vector<Tick> births, deaths;
  births.reserve(buffers.size() + obstacles.size());
  deaths.reserve(buffers.size() + obstacles.size());
  for (const Buffer& buffer : buffers) births.push_back(buffer.lower), deaths.push_back(buffer.upper);
  for (const Obstacle& obstacle : obstacles) births.push_back(obstacle.lower), deaths.push_back(obstacle.upper);
  std::sort(births.begin(), births.end());
  std::sort(deaths.begin(), deaths.end());
  std::vector<Tick> runs;
  auto death = deaths.begin();
  for (const Tick birth : births) {
    bool died = runs.empty();
    while (death != deaths.end() && *death <= birth) died = true, ++death;
    if (died) runs.push_back(birth);
  }
  return runs;
}

Instant birth_instant(const std::vector<Tick>& runs, Tick birth) {
  return static_cast<Instant>(std::upper_bound(runs.begin(), runs.end(), birth) - runs.begin()) - 1;
}

// Nothing is born between a death and the next run, so the death may wait for it.
Instant death_instant(const std::vector<Tick>& runs, Tick death) {
  return static_cast<Instant>(std::lower_bound(runs.begin(), runs.end(), death) - runs.begin());
}

std::vector<FixedRange> fixed_ranges(const std::vector<Tick>& runs, const std::vector<Obstacle>& obstacles,
                                     Bytes alignment) {
  std::vector<FixedRange> ranges;
  for (std::size_t i = 0; i < obstacles.size(); ++i) {
    const Obstacle& obstacle = obstacles[i];
    check_lifetime("obstacles", i, obstacle.lower, obstacle.upper);
    check_range(indexed("obstacles", i) + ".size", obstacle.size, 1);
    check_range(indexed("obstacles", i) + ".offset", obstacle.offset, 0);
    ranges.push_back({birth_instant(runs, obstacle.lower), death_instant(runs, obstacle.upper),
                      obstacle.offset / alignment,
                      round_up(obstacle.offset + obstacle.size, alignment) / alignment});
  }
  return ranges;
}

void add_movable_items(Problem& problem, const std::vector<Tick>& runs, const std::vector<Buffer>& buffers) {
  problem.items.reserve(buffers.size());
  Bytes total = 0;
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    const Buffer& buffer = buffers[i];
    check_lifetime("buffers", i, buffer.lower, buffer.upper);
    check_range(indexed("buffers", i) + ".size", buffer.size, 1);
    const Bytes size = round_up(buffer.size, problem.unit_bytes);
    total += size;
    check_range("total size", total, 0);
    problem.items.push_back({birth_instant(runs, buffer.lower), death_instant(runs, buffer.upper),
                             size / problem.unit_bytes});
  }
  problem.num_movable = problem.num_items();
}

}  // namespace

Problem make_problem(const std::vector<Buffer>& buffers, const std::vector<Obstacle>& obstacles, Bytes alignment) {
  check_range("alignment", alignment, 1);
  const auto num_buffers = static_cast<std::int64_t>(buffers.size() + obstacles.size());
  if (num_buffers > (std::int64_t{1} << 30)) refuse("num_buffers", num_buffers, "must be below 2^30. Split the input.");
  Problem problem;
  problem.unit_bytes = alignment;
  const std::vector<Tick> runs = find_runs(buffers, obstacles);
  problem.num_instants = static_cast<Instant>(runs.size());
  add_movable_items(problem, runs, buffers);
  add_fixed_items(problem, fixed_ranges(runs, obstacles, alignment));
  compute_live(problem);
  return problem;
}

void compute_live(Problem& problem) {
  problem.live.assign(static_cast<std::size_t>(problem.num_instants) + 1, 0);
  for (const Item& item : problem.items) {
    problem.live[static_cast<std::size_t>(item.lower)] += item.size;
    problem.live[static_cast<std::size_t>(item.upper)] -= item.size;
  }
  for (std::size_t t = 1; t < problem.live.size(); ++t) problem.live[t] += problem.live[t - 1];
  problem.live.pop_back();
  problem.lower_bound = peak_of(problem, unplaced_offsets(problem));
  for (const Units live : problem.live) problem.lower_bound = std::max(problem.lower_bound, live);
}

Offsets unplaced_offsets(const Problem& problem) {
  Offsets offsets(static_cast<std::size_t>(problem.num_movable), kUnplaced);
  offsets.insert(offsets.end(), problem.fixed_offsets.begin(), problem.fixed_offsets.end());
  return offsets;
}

Units peak_of(const Problem& problem, const Offsets& offsets) {
  Units peak = 0;
  for (std::size_t i = 0; i < offsets.size(); ++i) {
    if (offsets[i] != kUnplaced) peak = std::max(peak, offsets[i] + problem.items[i].size);
  }
  return peak;
}

std::vector<ComponentSpan> find_components(const Problem& problem) {
  const auto num_instants = static_cast<std::size_t>(problem.num_instants);
  std::vector<ItemIndex> balance(num_instants + 1, 0), born(num_instants + 1, 0);
  for (ItemIndex i = 0; i < problem.num_movable; ++i) {
    ++balance[static_cast<std::size_t>(problem.item(i).lower)];
    --balance[static_cast<std::size_t>(problem.item(i).upper)];
    ++born[static_cast<std::size_t>(problem.item(i).lower)];
  }
  const ItemIndex least_items = std::max(1, problem.num_items() - problem.num_movable);
  std::vector<ComponentSpan> spans;
  std::vector<std::int32_t> span_of(num_instants, 0);
  // Movable items alive just before t that are alive at t too: balance summed without what is born at t.
  ItemIndex alive = 0, gathered = least_items;
  for (std::size_t t = 0; t < num_instants; ++t) {
    alive += balance[t];
    const bool nothing_crosses = alive == born[t];
    if (spans.empty() || (nothing_crosses && gathered >= least_items)) {
      if (!spans.empty()) spans.back().end = static_cast<Instant>(t);
      spans.push_back({});
      spans.back().begin = static_cast<Instant>(t);
      gathered = 0;
    }
    gathered += born[t];
    span_of[t] = static_cast<std::int32_t>(spans.size()) - 1;
    spans.back().lower_bound = std::max(spans.back().lower_bound, problem.live[t]);
  }
  if (!spans.empty()) spans.back().end = problem.num_instants;
  for (ItemIndex i = 0; i < problem.num_movable; ++i) {
    const std::int32_t span = span_of[static_cast<std::size_t>(problem.item(i).lower)];
    spans[static_cast<std::size_t>(span)].items.push_back(i);
  }
  return spans;
}

Component make_component(const Problem& problem, const ComponentSpan& span) {
  Component component;
  component.origin = span.items;
  Problem& part = component.problem;
  part.unit_bytes = problem.unit_bytes;
  part.num_instants = span.end - span.begin;
  part.items.reserve(span.items.size());
  for (const ItemIndex i : span.items) {
    const Item& item = problem.item(i);
    part.items.push_back({item.lower - span.begin, item.upper - span.begin, item.size});
  }
  part.num_movable = part.num_items();
  for (ItemIndex i = problem.num_movable; i < problem.num_items(); ++i) {
    const Item& item = problem.item(i);
    const Instant lower = std::max(item.lower, span.begin), upper = std::min(item.upper, span.end);
    if (lower >= upper) continue;
    part.items.push_back({lower - span.begin, upper - span.begin, item.size});
    part.fixed_offsets.push_back(problem.fixed_offsets[static_cast<std::size_t>(i - problem.num_movable)]);
  }
  compute_live(part);
  return component;
}

}  // namespace stalloc
