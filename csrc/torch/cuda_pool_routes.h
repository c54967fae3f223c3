// Which requests belong to a memory pool (a graph capture or torch.cuda.use_mem_pool) and so to the native
// allocator; and whether events may be touched at all.
//
// While a pool is open on any device, a capture may be going on somewhere, and a capture in global mode forbids
// event calls on every thread. The native allocator makes none then; nor do we.
#pragma once

#include <atomic>
#include <functional>
#include <mutex>
#include <shared_mutex>
#include <vector>

#include "torch/compat.h"

namespace stalloc {

class CudaPoolRoutes {
 public:
  using Filter = std::function<bool(cudaStream_t)>;

  void open(c10::DeviceIndex device, MempoolId_t pool, Filter filter);
  void close(c10::DeviceIndex device, MempoolId_t pool) noexcept;

  bool any_open() const noexcept { return num_open_.load(std::memory_order_acquire) != 0; }
  // Whether a request of this thread for `stream` goes to an open pool. May ask CUDA for the stream's capture.
  bool claims(c10::DeviceIndex device, cudaStream_t stream) const;

  // Holds back open() while event calls are being made, so that none is under way when a capture begins.
  class EventScope {
   public:
    explicit EventScope(const CudaPoolRoutes& routes) : lock_(routes.mutex_), allowed_(!routes.any_open()) {}
    bool allowed() const noexcept { return allowed_; }

   private:
    std::shared_lock<std::shared_mutex> lock_;
    const bool allowed_;
  };

 private:
  struct Route {
    c10::DeviceIndex device;
    MempoolId_t pool;
    Filter filter;
  };

  // Guards routes_. Held while a filter runs: a filter may point into a graph that close() lets go of.
  mutable std::shared_mutex mutex_;
  std::vector<Route> routes_;
  std::atomic<int> num_open_{0};
};

}  // namespace stalloc
