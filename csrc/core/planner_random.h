// Arithmetic that is the same on every machine: random numbers and a rough logarithm.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace stalloc {

class Random {
 public:
  explicit Random(std::uint64_t seed) noexcept : state_(seed) {}

  // splitmix64: every 64-bit state is allowed, and near seeds give unrelated streams.
  std::uint64_t next() noexcept {
    std::uint64_t z = (state_ += 0x9E3779B97F4A7C15ULL);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    return z ^ (z >> 31);
  }
  std::size_t below(std::size_t bound) noexcept { return static_cast<std::size_t>(next() % bound); }
  double uniform() noexcept { return static_cast<double>(next() >> 11) * 0x1p-53; }  // [0, 1)

 private:
  std::uint64_t state_;
};

// log2 read off the bits, straight between powers of two: cheap, and the same on every machine.
inline float rough_log2(float value) noexcept {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof bits);
  return static_cast<float>(bits) * (1.0F / 8388608.0F) - 127.0F;
}

}  // namespace stalloc
