// Units and the few constants that every floor shares.
#pragma once

#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>

namespace stalloc {

using Bytes = std::int64_t;
// Allocations counted from the start of a timeline. A free does not advance it: a block that is freed
// before allocation k may give its bytes to allocation k.
using Tick = std::int64_t;
using StreamHandle = std::uint64_t;  // opaque: a cudaStream_t, 0 on the CPU
using RoleIndex = std::int32_t;      // streams in order of first appearance; handles change from run to run

inline constexpr Bytes kAlignment = 512;  // what torch rounds CUDA requests to
// What a BlockMap can describe: its granules of 512 bytes are counted in 32 bits.
inline constexpr Bytes kMaxExtentBytes = Bytes{1} << 41;
// The most that a plan may ask for, of one space; an extent is a little longer than its share of the plan.
inline constexpr Bytes kMaxArenaBytes = kMaxExtentBytes / 2;
inline constexpr Tick kNever = std::numeric_limits<Tick>::max();
inline constexpr Bytes kUnplaced = -1;

constexpr Bytes round_up(Bytes size, Bytes alignment) noexcept {
  return (size + alignment - 1) / alignment * alignment;
}

// The one exception of core and runtime. The text names what failed, the value, the rule and what to do.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace stalloc
