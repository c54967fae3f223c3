// The memory of a device that does not exist: virtual addresses below a limit on what may be taken at once.
#pragma once

#include <cstdint>

#include "core/types.h"

namespace stalloc {

class SimulatedDevice {
 public:
  // `limit_bytes` is what one process may hold, as torch's memory fraction sets it; 0: no limit.
  explicit SimulatedDevice(Bytes limit_bytes = 0) noexcept : limit_(limit_bytes) {}

  Bytes limit() const noexcept { return limit_; }
  Bytes taken() const noexcept { return taken_; }
  bool has_room(Bytes size) const noexcept { return limit_ == 0 || size <= limit_ - taken_; }

  void take(Bytes size) noexcept { taken_ += size; }
  void give_back(Bytes size) noexcept { taken_ -= size; }

  // A range that was never handed out. New ranges lie below older ones, as the driver places them: the
  // caching allocators break ties by address.
  std::uint64_t new_range(Bytes size) noexcept {
    next_end_ -= static_cast<std::uint64_t>(round_up(size, kSpacing));
    return next_end_;
  }

 private:
  static constexpr Bytes kSpacing = Bytes{32} << 20;

  Bytes limit_;
  Bytes taken_ = 0;
  std::uint64_t next_end_ = 0x7fff'0000'0000;  // 47 bits, as the CPU and the driver share them
};

}  // namespace stalloc
