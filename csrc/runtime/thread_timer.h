// Times threads that do the same at once, from the moment at which all of them are ready.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>

namespace stalloc {

// The time in ns until `num_threads` threads have each called `work()`. `prepare()`, what a thread does once, is not in it.
template <class Prepare, class Work>
double concurrent_ns(std::int64_t num_threads, const Prepare& prepare, const Work& work) {
  std::atomic<std::int64_t> num_ready{0};
  std::atomic<bool> go{false};
  std::vector<std::thread> threads;
  for (std::int64_t i = 0; i < num_threads; ++i)
    threads.emplace_back([&] {
      prepare();
      num_ready.fetch_add(1);
      while (!go.load()) std::this_thread::yield();
      work();
    });
  while (num_ready.load() < num_threads) std::this_thread::yield();
  const auto begin = std::chrono::steady_clock::now();
  go.store(true);
  for (std::thread& thread : threads) thread.join();
  return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - begin).count();
}

}  // namespace stalloc
