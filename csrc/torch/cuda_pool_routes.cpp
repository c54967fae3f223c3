#include "torch/cuda_pool_routes.h"

#include <algorithm>

namespace stalloc {

void CudaPoolRoutes::open(c10::DeviceIndex device, MempoolId_t pool, Filter filter) {
  const std::unique_lock<std::shared_mutex> lock(mutex_);
  routes_.push_back({device, pool, std::move(filter)});
  num_open_.store(static_cast<int>(routes_.size()), std::memory_order_release);
}

void CudaPoolRoutes::close(c10::DeviceIndex device, MempoolId_t pool) noexcept {
  const std::unique_lock<std::shared_mutex> lock(mutex_);
  const auto found = std::find_if(routes_.begin(), routes_.end(), [&](const Route& route) {
    return route.device == device && route.pool == pool;
  });
  if (found != routes_.end()) routes_.erase(found);
  num_open_.store(static_cast<int>(routes_.size()), std::memory_order_release);
}

bool CudaPoolRoutes::claims(c10::DeviceIndex device, cudaStream_t stream) const {
  const std::shared_lock<std::shared_mutex> lock(mutex_);
  return std::any_of(routes_.begin(), routes_.end(), [&](const Route& route) {
    return route.device == device && route.filter(stream);
  });
}

}  // namespace stalloc
