#include "core/step_values.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <unordered_map>

#include "core/new_beginning.h"

namespace stalloc {
namespace {

constexpr std::size_t kReach = 48;      // allocations looked at on either side of where the definer was paired
constexpr std::size_t kMaxWitnesses = 64;

struct Variable {
  std::size_t definer = 0;  // the allocation paired with the defining request, or the first that follows it
  bool is_met = false;
  RoleIndex role = 0;
  std::vector<std::size_t> witnesses;  // allocations paired with requests that follow the variable
};

std::vector<Variable> gather(const Lifetimes& lifetimes, std::size_t begin, const Period& period,
                             const std::vector<Tick>& aligned) {
  std::vector<Variable> variables(period.variable_bytes.size());
  for (std::size_t i = 0; i < aligned.size(); ++i) {
    if (aligned[i] < 0) continue;
    const SizeModel& model = period.blocks[static_cast<std::size_t>(aligned[i])].model;
    if (model.variable == kNoVariable) continue;
    Variable& variable = variables[static_cast<std::size_t>(model.variable)];
    if (!variable.is_met) {
      variable.is_met = true;
      variable.definer = i;
      variable.role = lifetimes.blocks[begin + i].role;
    }
    if (!model.defines && variable.witnesses.size() < kMaxWitnesses) variable.witnesses.push_back(i);
  }
  return variables;
}

}  // namespace

std::vector<Bytes> find_values(const Lifetimes& lifetimes, std::size_t begin, const Period& period,
                               const std::vector<Tick>& aligned) {
  std::vector<Bytes> values(period.variable_bytes.size(), 0);
  const std::vector<Variable> variables = gather(lifetimes, begin, period, aligned);
  const auto block = [&](std::size_t i) -> const Block& { return lifetimes.blocks[begin + i]; };
  for (std::size_t v = 0; v < variables.size(); ++v) {
    const Variable& variable = variables[v];
    if (!variable.is_met) continue;
    std::size_t most = 0;
    const auto consider = [&](std::size_t candidate) {
      if (candidate >= aligned.size() || block(candidate).role != variable.role) return;
      const Bytes value = block(candidate).requested;
      std::size_t followers = 1;
      for (const std::size_t witness : variable.witnesses) {
        const SizeModel& model = period.blocks[static_cast<std::size_t>(aligned[witness])].model;
        followers += model.bytes_at(value) == block(witness).size() ? 1 : 0;
      }
      if (followers <= most) return;
      most = followers;
      values[v] = value;
    };
    consider(variable.definer);
    for (std::size_t distance = 1; distance <= kReach; ++distance) {
      consider(variable.definer - distance);  // wraps below 0, out of range
      consider(variable.definer + distance);
    }
  }
  return values;
}

namespace {

constexpr std::size_t kMinFollowers = 8;    // fewer are there by chance
constexpr double kLeastFound = 0.5;         // of a variable's followers

using Counts = std::unordered_map<Bytes, std::size_t>;  // of requests, by size

struct Followers {
  std::map<std::tuple<double, double>, std::size_t> counts;  // by base and slope
  RoleIndex role = 0;  // of the first one: the others are not looked at
  Tick first = 0;
  Tick last = 0;
  std::size_t count = 0;
};

std::vector<Followers> followers_of(const Period& period) {
  std::vector<Followers> all(period.variable_bytes.size());
  for (const PeriodBlock& block : period.blocks) {
    if (block.model.variable == kNoVariable || block.model.defines) continue;
    Followers& followers = all[static_cast<std::size_t>(block.model.variable)];
    if (followers.count == 0) {
      followers.role = block.role;
      followers.first = block.birth;
    }
    if (followers.role != block.role) continue;
    ++followers.count;
    ++followers.counts[{block.model.base, block.model.slope}];
    followers.last = block.birth;
  }
  return all;
}

std::size_t num_found(const Followers& followers, const Counts& present, Bytes value) {
  std::size_t found = 0;
  for (const auto& [model, count] : followers.counts) {
    const SizeModel follows{std::get<0>(model), std::get<1>(model), 0, false};
    const auto at = present.find(follows.bytes_at(value));
    if (at != present.end()) found += std::min(at->second, count);
  }
  return found;
}

}  // namespace

void find_values_by_sizes(const Lifetimes& lifetimes, std::int64_t step, const Period& period, std::vector<Bytes>& values) {
  constexpr std::size_t kSlack = 16;  // before a variable's first follower, for the request that tells it
  const std::size_t begin = lifetimes.begin_of(step);
  const std::size_t end = lifetimes.begin_of(step + 1);
  const auto num_ticks = static_cast<std::size_t>(period.num_ticks);
  const std::size_t extras = end - begin > num_ticks ? end - begin - num_ticks : 0;
  const std::vector<Followers> all = followers_of(period);
  for (std::size_t v = 0; v < all.size(); ++v) {
    const Followers& followers = all[v];
    if (followers.count < kMinFollowers || begin == end) continue;
    // Counted from the end, since a first step asks for more at its beginning.
    const auto before_end = [&](Tick tick) { return std::min(end - begin, num_ticks - static_cast<std::size_t>(tick)); };
    const std::size_t from = end - std::min(end - begin, before_end(followers.first) + extras + kSlack);
    const std::size_t to = end - before_end(followers.last) + 1;
    Counts present;
    std::set<Bytes> candidates;
    for (std::size_t i = from; i < to; ++i) {
      const Block& block = lifetimes.blocks[i];
      if (block.role != followers.role) continue;
      ++present[block.size()];
      if (NewBeginning::may_tell(block.requested, period.variable_bytes[v])) candidates.insert(block.requested);
    }
    std::size_t most_found = values[v] > 0 ? num_found(followers, present, values[v]) : 0;
    for (const Bytes candidate : candidates) {
      const std::size_t found = num_found(followers, present, candidate);
      if (found <= most_found || static_cast<double>(found) < kLeastFound * static_cast<double>(followers.count)) continue;
      most_found = found;
      values[v] = candidate;
    }
  }
}

}  // namespace stalloc
