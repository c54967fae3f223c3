// Random numbers that are the same on every machine for the same seed.
#pragma once

#include <cstdint>

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

}  // namespace stalloc
