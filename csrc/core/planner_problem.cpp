#include "core/planner_problem.h"

#include <algorithm>
#include <map>
#include <string>
#include <tuple>

namespace stalloc {
namespace {

constexpr Bytes kMaxBytes = std::numeric_limits<Bytes>::max() / 4;

[[noreturn]] void refuse(const char* what, const std::string& name, std::int64_t value, const std::string& rule) {
  throw Error(std::string(what) + ": " + name + "=" + std::to_string(value) + ", " + rule);
}

void check_lifetime(const char* what, std::size_t index, Tick lower, Tick upper) {
  if (lower < upper) return;
  refuse(what, "lower[" + std::to_string(index) + "]", lower,
         "must be less than upper=" + std::to_string(upper) + ". Give half-open lifetimes that are not empty.");
}

void check_size(const char* what, std::size_t index, Bytes size) {
  const std::string name = "size[" + std::to_string(index) + "]";
  if (size <= 0) refuse(what, name, size, "must be positive. Leave empty buffers out.");
  if (size > kMaxBytes) refuse(what, name, size, "must be at most " + std::to_string(kMaxBytes) + ". Give it in bytes.");
}

// Distinct births, thinned so that a birth is kept only if something dies between it and the one before.
std::vector<Tick> distinct_births(const std::vector<Buffer>& buffers, const std::vector<Obstacle>& obstacles) {
  std::vector<Tick> births, deaths;
  births.reserve(buffers.size() + obstacles.size());
  deaths.reserve(births.capacity());
  for (const Buffer& buffer : buffers) births.push_back(buffer.lower), deaths.push_back(buffer.upper);
  for (const Obstacle& obstacle : obstacles) births.push_back(obstacle.lower), deaths.push_back(obstacle.upper);
  std::sort(births.begin(), births.end());
  std::sort(deaths.begin(), deaths.end());
  std::vector<Tick> kept;
  auto death = deaths.begin();
  for (const Tick birth : births) {
    bool died = kept.empty();
    while (death != deaths.end() && *death <= birth) died = true, ++death;
    if (died) kept.push_back(birth);
  }
  return kept;
}

// Births fold into the run they belong to (rounded down), deaths into the first run that starts at or after them.
Instant birth_instant(const std::vector<Tick>& runs, Tick birth) {
  return static_cast<Instant>(std::upper_bound(runs.begin(), runs.end(), birth) - runs.begin()) - 1;
}
Instant death_instant(const std::vector<Tick>& runs, Tick death) {
  return static_cast<Instant>(std::lower_bound(runs.begin(), runs.end(), death) - runs.begin());
}

// What the obstacles cover at each instant, counting shared bytes once.
void add_obstacle_cover(Problem& problem) {
  if (problem.obstacles.empty()) return;
  std::vector<std::tuple<Instant, bool, std::size_t>> events;
  for (std::size_t i = 0; i < problem.obstacles.size(); ++i) {
    events.emplace_back(problem.obstacles[i].lower, true, i);
    events.emplace_back(problem.obstacles[i].upper, false, i);
  }
  std::sort(events.begin(), events.end());
  std::multimap<Units, Units> ranges;  // live obstacles, begin -> end
  Instant from = 0;
  auto cover = [&](Instant until) {
    if (until <= from) return;
    Units covered = 0, reached = 0;
    for (const auto& [begin, end] : ranges) {
      if (end <= reached) continue;
      covered += end - std::max(begin, reached);
      reached = end;
    }
    for (Instant t = from; t < until; ++t) problem.live[static_cast<std::size_t>(t)] += covered;
    from = until;
  };
  for (const auto& [instant, born, index] : events) {
    cover(instant);
    const FixedItem& fixed = problem.obstacles[index];
    if (born) {
      ranges.emplace(fixed.begin, fixed.end);
      continue;
    }
    auto [first, last] = ranges.equal_range(fixed.begin);
    ranges.erase(std::find_if(first, last, [&](const auto& range) { return range.second == fixed.end; }));
  }
}

void compute_live(Problem& problem) {
  problem.live.assign(static_cast<std::size_t>(problem.num_instants) + 1, 0);
  for (const Item& item : problem.items) {
    problem.live[static_cast<std::size_t>(item.lower)] += item.size;
    problem.live[static_cast<std::size_t>(item.upper)] -= item.size;
  }
  for (std::size_t t = 1; t < problem.live.size(); ++t) problem.live[t] += problem.live[t - 1];
  problem.live.resize(static_cast<std::size_t>(problem.num_instants));
  add_obstacle_cover(problem);
  for (const Units live : problem.live) problem.lower_bound = std::max(problem.lower_bound, live);
  for (const FixedItem& fixed : problem.obstacles) problem.lower_bound = std::max(problem.lower_bound, fixed.end);
}

}  // namespace

Problem make_problem(const std::vector<Buffer>& buffers, const std::vector<Obstacle>& obstacles, Bytes alignment) {
  if (alignment <= 0) refuse("plan", "alignment", alignment, "must be positive. Use 512 for CUDA, 1 for any byte.");
  if (buffers.size() + obstacles.size() > (std::size_t{1} << 30)) {
    refuse("plan", "num_buffers", static_cast<std::int64_t>(buffers.size()), "must be below 2^30. Split the input.");
  }
  Problem problem;
  problem.unit_bytes = alignment;
  const std::vector<Tick> runs = distinct_births(buffers, obstacles);
  problem.num_instants = static_cast<Instant>(runs.size());
  Bytes total = 0;
  auto add_total = [&](Bytes size) {
    total += round_up(size, alignment);
    if (total > kMaxBytes) refuse("plan", "total_size", total, "must be at most " + std::to_string(kMaxBytes) + ". Split the input.");
  };
  problem.items.reserve(buffers.size());
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    const Buffer& buffer = buffers[i];
    check_lifetime("plan", i, buffer.lower, buffer.upper);
    check_size("plan", i, buffer.size);
    add_total(buffer.size);
    problem.items.push_back({birth_instant(runs, buffer.lower), death_instant(runs, buffer.upper),
                             round_up(buffer.size, alignment) / alignment});
  }
  for (std::size_t i = 0; i < obstacles.size(); ++i) {
    const Obstacle& obstacle = obstacles[i];
    check_lifetime("plan around obstacles", i, obstacle.lower, obstacle.upper);
    check_size("plan around obstacles", i, obstacle.size);
    if (obstacle.offset < 0 || obstacle.offset > kMaxBytes) {
      refuse("plan around obstacles", "offset[" + std::to_string(i) + "]", obstacle.offset,
             "must lie in [0, " + std::to_string(kMaxBytes) + "]. Give offsets in bytes from the start of the arena.");
    }
    problem.obstacles.push_back({birth_instant(runs, obstacle.lower), death_instant(runs, obstacle.upper),
                                 obstacle.offset / alignment, round_up(obstacle.offset + obstacle.size, alignment) / alignment});
  }
  compute_live(problem);
  return problem;
}

Units peak_of(const Problem& problem, const Offsets& offsets) {
  Units peak = 0;
  for (const FixedItem& fixed : problem.obstacles) peak = std::max(peak, fixed.end);
  for (std::size_t i = 0; i < offsets.size(); ++i) {
    if (offsets[i] != kUnplaced) peak = std::max(peak, offsets[i] + problem.items[i].size);
  }
  return peak;
}

}  // namespace stalloc
