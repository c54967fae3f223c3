// Times an allocation and its free through an allocator of c10, the way an operator of torch makes them.
#pragma once

#include <c10/core/Allocator.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/thread_timer.h"

namespace stalloc {

// The median over batches of the time of one pair, in ns. The clock is read once a batch: it costs as much as a pair.
inline double median_pair_ns(c10::Allocator& allocator, std::size_t size_bytes, std::int64_t num_pairs) {
  constexpr std::int64_t kBatch = 64;
  std::vector<double> batch_ns;
  for (std::int64_t done = 0; done < num_pairs; done += kBatch) {
    const auto begin = std::chrono::steady_clock::now();
    for (std::int64_t i = 0; i < kBatch; ++i) {
      const c10::DataPtr block = allocator.allocate(size_bytes);
      asm volatile("" : : "r"(block.get()) : "memory");
    }
    const std::chrono::duration<double, std::nano> elapsed = std::chrono::steady_clock::now() - begin;
    batch_ns.push_back(elapsed.count() / static_cast<double>(kBatch));
  }
  if (batch_ns.empty()) return 0;
  const auto middle = batch_ns.begin() + static_cast<std::ptrdiff_t>(batch_ns.size() / 2);
  std::nth_element(batch_ns.begin(), middle, batch_ns.end());
  return *middle;
}

// The time that a pair takes a thread while `num_threads` threads make `num_pairs` each at once, in ns.
inline double concurrent_pair_ns(c10::Allocator& allocator, std::size_t size_bytes, std::int64_t num_pairs,
                                 std::int64_t num_threads) {
  if (num_pairs <= 0 || num_threads <= 0) return 0;
  const auto make_pair = [&] {
    const c10::DataPtr block = allocator.allocate(size_bytes);
    asm volatile("" : : "r"(block.get()) : "memory");
  };
  const auto make_pairs = [&] {
    for (std::int64_t i = 0; i < num_pairs; ++i) make_pair();
  };
  return concurrent_ns(num_threads, make_pair, make_pairs) / static_cast<double>(num_pairs);
}

}  // namespace stalloc
