#include "core/step_alignment.h"

#include <algorithm>

#include "core/alignment.h"

namespace stalloc {
namespace {

// Longer lives differ by what happens in between: they all count as one, but for those that outlive the step.
constexpr Tick kLongLife = 32;
constexpr Tick kOutlivesStep = kLongLife + 1;
constexpr std::int64_t kMinEdits = 1024;
constexpr std::int64_t kMaxEdits = 4096;  // alignment keeps the square of it

struct RoleStep {
  std::vector<std::int64_t> lives;    // what is compared; with kinds also of these
  std::vector<std::int32_t> kinds;
  std::vector<Bytes> sizes;
  std::vector<Tick> ticks;
};

RoleStep of_role(const Lifetimes& lifetimes, std::int64_t step, RoleIndex role, const SizeKinds* kinds) {
  RoleStep result;
  const std::size_t begin = lifetimes.begin_of(step);
  for (std::size_t i = begin; i < lifetimes.begin_of(step + 1); ++i) {
    const Block& block = lifetimes.blocks[i];
    if (block.role != role) continue;
    const bool outlives = block.death > static_cast<Tick>(lifetimes.begin_of(step + 1));
    const Tick life = outlives ? kOutlivesStep : std::min(block.death - block.birth, kLongLife);
    const std::int32_t kind = kinds == nullptr ? kNoKind : kinds->kind_of(block.size());
    // Of a kind there is no doubt, however long it lives: what comes in between may be routed.
    result.lives.push_back(kind == kNoKind ? life : kOutlivesStep + 1 + kind);
    result.kinds.push_back(kind);
    result.sizes.push_back(block.size());
    result.ticks.push_back(static_cast<Tick>(i - begin));
  }
  return result;
}

// Among neighbours that live as long, the pair is the one of the same size.
void prefer_same_sizes(std::vector<std::int64_t>& pairs, const RoleStep& a, const RoleStep& b) {
  for (std::size_t i = 1; i < pairs.size(); ++i) {
    if (pairs[i] < 0 || a.sizes[i] == b.sizes[static_cast<std::size_t>(pairs[i])]) continue;
    const auto other = static_cast<std::size_t>(pairs[i]);
    for (std::size_t before = i; before-- > 0 && pairs[before] < 0;) {
      if (a.lives[before] != a.lives[i] || a.sizes[before] != b.sizes[other]) continue;
      std::swap(pairs[before], pairs[i]);
      break;
    }
  }
}

// Where as many requests stay alone on both sides between the same two pairs, they only lived for another time.
void pair_leftovers(std::vector<std::int64_t>& pairs, const RoleStep& a, const RoleStep& b) {
  const auto num_others = static_cast<std::int64_t>(b.ticks.size());
  if (std::all_of(pairs.begin(), pairs.end(), [](std::int64_t other) { return other < 0; })) return;
  std::int64_t other = 0;  // behind the pair before
  for (std::size_t first = 0; first <= pairs.size(); ++first) {
    std::size_t last = first;
    while (last < pairs.size() && pairs[last] < 0) ++last;
    const std::int64_t next = last < pairs.size() ? pairs[last] : num_others;
    if (static_cast<std::int64_t>(last - first) == next - other)
      for (std::size_t i = first; i < last; ++i, ++other)
        if (a.kinds[i] == b.kinds[static_cast<std::size_t>(other)]) pairs[i] = other;
    other = next + 1;
    first = last;
  }
}

std::vector<Tick> pair(const Lifetimes& lifetimes, std::int64_t from, std::int64_t to, RoleIndex num_roles,
                       const SizeKinds* from_kinds, const SizeKinds* to_kinds) {
  std::vector<Tick> paired(lifetimes.begin_of(from + 1) - lifetimes.begin_of(from), -1);
  for (RoleIndex role = 0; role < num_roles; ++role) {
    RoleStep a = of_role(lifetimes, from, role, from_kinds);
    const RoleStep b = of_role(lifetimes, to, role, to_kinds);
    // What comes long before the other step's share is construction.
    const std::size_t kept = std::min(a.lives.size(), b.lives.size() + b.lives.size() / 4 + 1024);
    const auto dropped = static_cast<std::ptrdiff_t>(a.lives.size() - kept);
    a.lives.erase(a.lives.begin(), a.lives.begin() + dropped);
    a.kinds.erase(a.kinds.begin(), a.kinds.begin() + dropped);
    a.sizes.erase(a.sizes.begin(), a.sizes.begin() + dropped);
    a.ticks.erase(a.ticks.begin(), a.ticks.begin() + dropped);
    const auto longest = static_cast<std::int64_t>(std::max(a.lives.size(), b.lives.size()));
    std::vector<std::int64_t> pairs = align(a.lives, b.lives, std::clamp(longest / 4, kMinEdits, kMaxEdits));
    prefer_same_sizes(pairs, a, b);
    pair_leftovers(pairs, a, b);
    for (std::size_t i = 0; i < pairs.size(); ++i)
      if (pairs[i] >= 0) paired[static_cast<std::size_t>(a.ticks[i])] = b.ticks[static_cast<std::size_t>(pairs[i])];
  }
  return paired;
}

}  // namespace

std::vector<Tick> pair_steps(const Lifetimes& lifetimes, std::int64_t from, std::int64_t to, RoleIndex num_roles) {
  return pair(lifetimes, from, to, num_roles, nullptr, nullptr);
}

std::vector<Tick> pair_steps(const Lifetimes& lifetimes, std::int64_t from, std::int64_t to, RoleIndex num_roles,
                             const SizeKinds& from_kinds, const SizeKinds& to_kinds, std::vector<Tick> by_lives) {
  constexpr double kLeastShare = 0.9;
  const auto num_paired = [](const std::vector<Tick>& ticks) {
    return static_cast<double>(std::count_if(ticks.begin(), ticks.end(), [](Tick tick) { return tick >= 0; }));
  };
  std::vector<Tick> by_kinds = pair(lifetimes, from, to, num_roles, &from_kinds, &to_kinds);
  return num_paired(by_kinds) < kLeastShare * num_paired(by_lives) ? by_lives : by_kinds;
}

}  // namespace stalloc
