#include "core/pickle_bytes.h"

#include <algorithm>

#include "core/types.h"

namespace stalloc {
namespace {

constexpr std::size_t kBufferBytes = std::size_t{1} << 16;
constexpr std::uint64_t kLongestText = 1 << 20;

}  // namespace

PickleBytes::PickleBytes(const Source& source) : source_(&source), buffer_(kBufferBytes) {}

void PickleBytes::refuse(const std::string& what) const {
  throw Error("reading a snapshot: byte=" + std::to_string(total_read_ - filled_ + at_) + ", " + what +
              ". Give a file from torch.cuda.memory._dump_snapshot().");
}

void PickleBytes::close() noexcept {
  source_ = nullptr;
  std::vector<char>().swap(buffer_);
  std::string().swap(scratch_);
  at_ = filled_ = 0;
}

void PickleBytes::fill() {
  filled_ = (*source_)(buffer_.data(), buffer_.size());
  at_ = 0;
  total_read_ += filled_;
  if (filled_ == 0) refuse("the file ends too early");
}

std::uint64_t PickleBytes::little_endian(int num_bytes) {
  std::uint64_t value = 0;
  for (int i = 0; i < num_bytes; ++i) value |= static_cast<std::uint64_t>(byte()) << (8 * i);
  return value;
}

std::string_view PickleBytes::bytes(std::uint64_t count) {
  if (count > kLongestText) refuse("a text of " + std::to_string(count) + " bytes is too long");
  if (filled_ - at_ >= count) {
    at_ += static_cast<std::size_t>(count);
    return {buffer_.data() + at_ - count, static_cast<std::size_t>(count)};
  }
  scratch_.clear();
  while (scratch_.size() < count) {
    if (at_ == filled_) fill();
    const std::size_t part = std::min(static_cast<std::size_t>(count) - scratch_.size(), filled_ - at_);
    scratch_.append(buffer_.data() + at_, part);
    at_ += part;
  }
  return scratch_;
}

std::string_view PickleBytes::line() {
  scratch_.clear();
  for (char c = static_cast<char>(byte()); c != '\n'; c = static_cast<char>(byte())) {
    if (scratch_.size() >= kLongestText) refuse("a line is too long");
    scratch_.push_back(c);
  }
  return scratch_;
}

void PickleBytes::skip(std::uint64_t count) {
  while (count > 0) {
    if (at_ == filled_) fill();
    const auto part = std::min<std::uint64_t>(count, filled_ - at_);
    at_ += static_cast<std::size_t>(part);
    count -= part;
  }
}

}  // namespace stalloc
