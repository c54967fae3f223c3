// The bytes of a pickle, read through a buffer; knows where it is, so that a refusal can name the place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace stalloc {

class PickleBytes {
 public:
  // Up to `capacity` bytes into `buffer`; 0 at the end.
  using Source = std::function<std::size_t(char* buffer, std::size_t capacity)>;

  explicit PickleBytes(const Source& source);

  // All throw Error where the file ends too early.
  std::uint8_t byte() {
    if (at_ == filled_) fill();
    return static_cast<std::uint8_t>(buffer_[at_++]);
  }
  std::uint64_t little_endian(int num_bytes);
  std::string_view bytes(std::uint64_t count);  // at most 1 MiB; valid until the next read
  std::string_view line();                      // without its end; valid until the next read
  void skip(std::uint64_t count);

  std::size_t total_read() const noexcept { return total_read_; }
  void close() noexcept;  // nothing is read any more: gives the buffers back
  [[noreturn]] void refuse(const std::string& what) const;  // throws Error

 private:
  void fill();

  const Source* source_;
  std::vector<char> buffer_;
  std::size_t at_ = 0;
  std::size_t filled_ = 0;
  std::size_t total_read_ = 0;
  std::string scratch_;
};

}  // namespace stalloc
