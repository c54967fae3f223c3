#include "torch/cpu_upstream.h"

#include <cstdlib>

namespace stalloc {
namespace {

constexpr Bytes kPageBytes = 4096;
static_assert(kPageBytes % kAlignment == 0);

}  // namespace

void* CpuUpstream::allocate(Bytes size, StreamHandle /*stream*/) noexcept {
  if (size <= 0) return nullptr;
  return std::aligned_alloc(static_cast<std::size_t>(kPageBytes),
                            static_cast<std::size_t>(round_up(size, kPageBytes)));
}

void CpuUpstream::deallocate(void* extent) noexcept { std::free(extent); }

}  // namespace stalloc
