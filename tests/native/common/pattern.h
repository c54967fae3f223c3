// What a block is filled with, so that whoever else writes to it is noticed. Of large blocks the ends and samples between.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "core/types.h"

namespace stalloc {

struct Block {
  char* data = nullptr;
  Bytes size = 0;
  std::uint64_t pattern = 0;
  StreamHandle stream = 0;  // it was asked for on
};

[[noreturn]] inline void fail(const char* what, const Block& block) {
  std::fprintf(stderr, "stress: %s: address=%p, size=%lld\n", what, static_cast<const void*>(block.data),
               static_cast<long long>(block.size));
  std::abort();
}

template <typename Visit>
void visit_samples(Bytes size, Visit visit) {
  constexpr Bytes kDense = 4096, kStride = 8192;
  for (Bytes at = 0; at < size; at += at < kDense || at >= size - kDense ? 1 : std::min(kStride, size - kDense - at)) visit(at);
}

inline char pattern_byte(const Block& block, Bytes at) {
  return static_cast<char>((block.pattern + static_cast<std::uint64_t>(at)) * 0x9e3779b97f4a7c15u >> 56);
}

inline void fill(const Block& block) {
  visit_samples(block.size, [&](Bytes at) { block.data[at] = pattern_byte(block, at); });
}

inline void verify(const Block& block, const char* when) {
  visit_samples(block.size, [&](Bytes at) {
    if (block.data[at] != pattern_byte(block, at)) fail(when, block);
  });
}

}  // namespace stalloc
