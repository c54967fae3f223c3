// Which edges of the library ran since the last clearing, counted up to 255. Meaningful with one thread only.
#pragma once

#include <cstddef>
#include <cstdint>

namespace stalloc {

inline constexpr std::size_t kCoverageSlots = std::size_t{1} << 16;
extern std::uint8_t coverage_hits[kCoverageSlots];

}  // namespace stalloc
