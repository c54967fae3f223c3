// The marks of -fsanitize-coverage=trace-pc: which edges of the library ran. Only the fuzzer looks at them.
#include "common/coverage.h"

namespace stalloc {

std::uint8_t coverage_hits[kCoverageSlots];

}  // namespace stalloc

extern "C" void __sanitizer_cov_trace_pc() {
  static thread_local std::uintptr_t last = 0;
  const auto here = reinterpret_cast<std::uintptr_t>(__builtin_return_address(0));
  std::uint8_t& hits = stalloc::coverage_hits[(here ^ last) % stalloc::kCoverageSlots];
  if (hits != 255) ++hits;
  last = here >> 1;
}
