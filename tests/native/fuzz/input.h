// Bytes read as choices: whatever they are, they mean something.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace stalloc {

class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size) : data_(data), left_(size) {}

  bool is_empty() const noexcept { return left_ == 0; }
  std::uint8_t byte() noexcept { return left_ == 0 ? 0 : (--left_, *data_++); }
  std::int64_t below(std::int64_t end) noexcept { return (byte() | byte() << 8) % end; }
  // Small, near a power of two, or anything at all.
  std::int64_t number() noexcept {
    const std::uint8_t kind = byte();
    if (kind < 160) return kind;
    if (kind < 220) return (std::int64_t{1} << (kind - 160)) + static_cast<std::int8_t>(byte());
    std::int64_t value = 0;
    for (int i = 0; i < 8; ++i) value = static_cast<std::int64_t>(static_cast<std::uint64_t>(value) << 8 | byte());
    return value;
  }
  std::int64_t aligned() noexcept {
    const std::uint8_t kind = byte();
    return kind < 240 ? std::int64_t{512} * (kind % 120) : number();
  }
  double real() noexcept {
    const std::uint8_t kind = byte();
    if (kind < 200) return kind / 8.0 - 2;
    const std::int64_t bits = number();
    double value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
  }

 private:
  const std::uint8_t* data_;
  std::size_t left_;
};

}  // namespace stalloc
