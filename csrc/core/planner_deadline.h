// When improving has to end.
#pragma once

#include <atomic>
#include <chrono>

namespace stalloc {

class Deadline {
 public:
  Deadline(double seconds, const std::atomic<bool>* cancelled) noexcept
      : start_(std::chrono::steady_clock::now()), seconds_(seconds), cancelled_(cancelled) {}

  double elapsed_s() const noexcept {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  }
  double remaining_s() const noexcept { return seconds_ - elapsed_s(); }
  bool is_cancelled() const noexcept {
    return cancelled_ != nullptr && cancelled_->load(std::memory_order_relaxed);
  }
  bool is_over() const noexcept { return is_cancelled() || remaining_s() <= 0; }

 private:
  std::chrono::steady_clock::time_point start_;
  double seconds_;
  const std::atomic<bool>* cancelled_;
};

}  // namespace stalloc
