// Times an allocation and its free through an allocator of c10, the way an operator of torch makes them.
#pragma once

#include <c10/core/Allocator.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <thread>
#include <vector>

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
  std::atomic<std::int64_t> num_ready{0};
  std::atomic<bool> go{false};
  const auto make_pairs = [&] {
    (void)allocator.allocate(size_bytes);  // what a thread does once is not measured
    num_ready.fetch_add(1);
    while (!go.load()) std::this_thread::yield();
    for (std::int64_t i = 0; i < num_pairs; ++i) {
      const c10::DataPtr block = allocator.allocate(size_bytes);
      asm volatile("" : : "r"(block.get()) : "memory");
    }
  };
  std::vector<std::thread> threads;
  for (std::int64_t i = 0; i < num_threads; ++i) threads.emplace_back(make_pairs);
  while (num_ready.load() < num_threads) std::this_thread::yield();
  const auto begin = std::chrono::steady_clock::now();
  go.store(true);
  for (std::thread& thread : threads) thread.join();
  const std::chrono::duration<double, std::nano> elapsed = std::chrono::steady_clock::now() - begin;
  return elapsed.count() / static_cast<double>(num_pairs);
}

}  // namespace stalloc
