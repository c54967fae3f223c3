// A mutex for sections of some hundred instructions, held without a call that may block: the engine's.
//
// Giving it back is one store, where std::mutex needs a second locked instruction to learn whether somebody sleeps. Who
// finds it taken looks again, then lets others run, then sleeps for short spans: an owner that was suspended in the middle
// is never starved by those who wait, whatever their priority. Unfair, as std::mutex.
#pragma once

#include <atomic>
#include <chrono>
#include <thread>

namespace stalloc {

class BriefMutex {
 public:
  BriefMutex() = default;
  BriefMutex(const BriefMutex&) = delete;
  BriefMutex& operator=(const BriefMutex&) = delete;

  void lock() noexcept {
    if (!try_lock()) wait();
  }
  bool try_lock() noexcept { return !is_taken_.exchange(true, std::memory_order_acquire); }
  void unlock() noexcept { is_taken_.store(false, std::memory_order_release); }

 private:
  static constexpr int kLooks = 32;    // before others are let run
  static constexpr int kYields = 16;   // before it sleeps

  bool is_taken_and_stays_so() noexcept {
    for (int look = 0; look < kLooks; ++look) {
      if (!is_taken_.load(std::memory_order_relaxed) && try_lock()) return false;
#if defined(__x86_64__)
      __builtin_ia32_pause();
#endif
    }
    return true;
  }
  __attribute__((noinline)) void wait() noexcept {
    for (int tries = 0; is_taken_and_stays_so(); ++tries) {
      if (tries < kYields) std::this_thread::yield();
      else std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  }

  std::atomic<bool> is_taken_{false};
};

}  // namespace stalloc
