#include "core/validator.h"

#include <algorithm>
#include <cstddef>
#include <map>

namespace stalloc {
namespace {

std::string describe(const std::vector<PlacedBuffer>& buffers, std::size_t index) {
  const PlacedBuffer& buffer = buffers[index];
  return "buffer " + std::to_string(index) + " (lower=" + std::to_string(buffer.lower) +
         ", upper=" + std::to_string(buffer.upper) + ", offset=" + std::to_string(buffer.offset) +
         ", size=" + std::to_string(buffer.size) + ")";
}

// Empty when the buffer is well formed and lies in [0, limit_bytes).
std::string find_own_fault(const std::vector<PlacedBuffer>& buffers, std::size_t index, Bytes limit_bytes) {
  const PlacedBuffer& buffer = buffers[index];
  if (buffer.lower >= buffer.upper) return describe(buffers, index) + " never lives.";
  if (buffer.size <= 0) return describe(buffers, index) + " has no bytes.";
  if (buffer.offset < 0) return describe(buffers, index) + " starts below 0.";
  // Written without offset + size, which a hostile input makes overflow.
  if (buffer.size > limit_bytes || buffer.offset > limit_bytes - buffer.size) {
    return describe(buffers, index) + " ends above limit_bytes=" + std::to_string(limit_bytes) + ".";
  }
  return {};
}

}  // namespace

// Walks through time with the live buffers sorted by offset. As long as they are disjoint, a newcomer shares
// bytes with some live buffer only if it does with the one just below or just above it.
std::string find_violation(const std::vector<PlacedBuffer>& buffers, Bytes limit_bytes) {
  std::vector<std::size_t> by_birth(buffers.size());
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    std::string fault = find_own_fault(buffers, i, limit_bytes);
    if (!fault.empty()) return fault;
    by_birth[i] = i;
  }
  std::vector<std::size_t> by_death = by_birth;
  std::stable_sort(by_birth.begin(), by_birth.end(),
                   [&](std::size_t a, std::size_t b) { return buffers[a].lower < buffers[b].lower; });
  std::stable_sort(by_death.begin(), by_death.end(),
                   [&](std::size_t a, std::size_t b) { return buffers[a].upper < buffers[b].upper; });
  std::map<Bytes, std::size_t> live;  // offset -> buffer
  auto dying = by_death.begin();
  for (const std::size_t newcomer : by_birth) {
    const PlacedBuffer& buffer = buffers[newcomer];
    for (; dying != by_death.end() && buffers[*dying].upper <= buffer.lower; ++dying) live.erase(buffers[*dying].offset);
    const auto above = live.lower_bound(buffer.offset);
    if (above != live.end() && above->first < buffer.offset + buffer.size) {
      return describe(buffers, newcomer) + " shares bytes with " + describe(buffers, above->second) + ".";
    }
    if (above != live.begin()) {
      const std::size_t below = std::prev(above)->second;
      if (buffers[below].offset + buffers[below].size > buffer.offset) {
        return describe(buffers, newcomer) + " shares bytes with " + describe(buffers, below) + ".";
      }
    }
    live.emplace(buffer.offset, newcomer);
  }
  return {};
}

}  // namespace stalloc
