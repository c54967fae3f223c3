// Replayable random choices.
#pragma once

#include <cstdint>
#include <random>
#include <vector>

namespace stalloc {

class Draw {
 public:
  explicit Draw(std::uint64_t seed) : engine_(seed) {}

  std::int64_t below(std::int64_t end) { return static_cast<std::int64_t>(engine_() % static_cast<std::uint64_t>(end)); }
  std::int64_t between(std::int64_t least, std::int64_t most) { return least + below(most - least + 1); }
  bool chance(double probability) { return static_cast<double>(engine_() >> 11) * 0x1p-53 < probability; }
  template <typename T>
  const T& pick(const std::vector<T>& from) { return from[static_cast<std::size_t>(below(static_cast<std::int64_t>(from.size())))]; }
  std::uint64_t seed() { return engine_(); }

 private:
  std::mt19937_64 engine_;
};

}  // namespace stalloc
