// What the debug mode does to memory that the host can reach.
#pragma once

#include <cstdint>
#include <cstring>

#include "core/types.h"

namespace stalloc {

// The index of the first byte that is not `byte`; `size` where all are.
inline Bytes first_other_byte(const void* begin, Bytes size, std::uint8_t byte) noexcept {
  const auto* bytes = static_cast<const std::uint8_t*>(begin);
  if (size <= 0) return size;
  // Equal to the first byte throughout: compared with itself, one further.
  if (bytes[0] == byte && std::memcmp(bytes, bytes + 1, static_cast<std::size_t>(size) - 1) == 0) return size;
  Bytes at = 0;
  while (at < size && bytes[at] == byte) ++at;
  return at;
}

}  // namespace stalloc
