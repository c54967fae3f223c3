// Whose is this pointer? The process's extents, readable without a lock by any free.
//
// Safe for a free: the extent that holds a live block stays published for as long as the block lives.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "core/types.h"

namespace stalloc {

class Engine;

class ExtentTable {
 public:
  static constexpr std::size_t kMaxExtents = 256;

  // The engine that served `ptr`; nullptr when it is not ours.
  static Engine* owner(const void* ptr) noexcept {
    const auto address = reinterpret_cast<std::uintptr_t>(ptr);
    const std::size_t used = used_.load(std::memory_order_acquire);
    for (std::size_t i = 0; i < used; ++i) {
      const Entry& entry = entries_[i];
      if (address - entry.base.load(std::memory_order_relaxed) < entry.size.load(std::memory_order_acquire))
        return entry.engine.load(std::memory_order_relaxed);
    }
    return nullptr;
  }
  // False when the table is full.
  static bool publish(Engine* engine, const void* base, Bytes size) noexcept;
  static void withdraw(const void* base) noexcept;

 private:
  struct Entry {
    std::atomic<std::uintptr_t> base{0};
    std::atomic<std::uintptr_t> size{0};  // 0: the entry is empty
    std::atomic<Engine*> engine{nullptr};
  };
  static std::array<Entry, kMaxExtents> entries_;
  static std::atomic<std::size_t> used_;  // entries from here on were never used
};

}  // namespace stalloc
