#include "core/step_order.h"

#include <algorithm>

namespace stalloc {
namespace {

constexpr std::size_t kMaxSwapped = 64;  // requests in a row that may come in another order

Bytes size_of(const Lifetimes& lifetimes, const RoleRequests& requests, std::size_t at) {
  return lifetimes.blocks[requests.begin + static_cast<std::size_t>(requests.ticks[at])].size();
}

// The end of the shortest row from `at` on that asks for the same sizes in both; `at` where there is none.
std::size_t end_of_swap(const Lifetimes& lifetimes, const RoleRequests& base, const RoleRequests& step,
                        std::size_t at) {
  std::vector<Bytes> missing;  // asked for by the base only, so far
  std::vector<Bytes> extra;    // by the step only
  const auto settle = [](std::vector<Bytes>& owed, std::vector<Bytes>& others, Bytes size) {
    const auto found = std::find(others.begin(), others.end(), size);
    if (found == others.end()) owed.push_back(size);
    else others.erase(found);
  };
  const std::size_t last = std::min(step.ticks.size(), at + kMaxSwapped);
  for (std::size_t end = at; end < last; ++end) {
    settle(missing, extra, size_of(lifetimes, base, end));
    settle(extra, missing, size_of(lifetimes, step, end));
    if (missing.empty() && extra.empty()) return end + 1;
  }
  return at;
}

}  // namespace

std::vector<Tick> in_order_of(const Lifetimes& lifetimes, const RoleRequests& base, const RoleRequests& step) {
  RoleRequests ordered = step;
  for (std::size_t at = 0; at < step.ticks.size(); ++at) {
    const Bytes wanted = size_of(lifetimes, base, at);
    if (size_of(lifetimes, ordered, at) == wanted) continue;
    const std::size_t end = end_of_swap(lifetimes, base, ordered, at);
    if (end == at) return step.ticks;
    for (std::size_t from = at + 1; from < end; ++from)
      if (size_of(lifetimes, ordered, from) == wanted) {
        // The others keep their order among themselves.
        std::rotate(ordered.ticks.begin() + static_cast<std::ptrdiff_t>(at),
                    ordered.ticks.begin() + static_cast<std::ptrdiff_t>(from),
                    ordered.ticks.begin() + static_cast<std::ptrdiff_t>(from) + 1);
        break;
      }
  }
  return ordered.ticks;
}

}  // namespace stalloc
