// What we keep for one device. Made when it is first needed, which touches no CUDA, and never destroyed.
#pragma once

#include "runtime/engine.h"
#include "torch/cuda_history.h"
#include "torch/cuda_stats.h"
#include "torch/cuda_upstream.h"

namespace stalloc {

struct CudaDevice {
  CudaDevice(native::CUDAAllocator& native, c10::DeleterFnPtr native_deleter, const CudaPoolRoutes& routes,
             c10::DeviceIndex device)
      : index(device),
        upstream(native, native_deleter, routes, device),
        engine(upstream),
        stats(native, upstream, engine, device),
        history(native, device) {
    upstream.set_before_extent([this] { stats.before_extent(); });
  }

  const c10::DeviceIndex index;
  CudaUpstream upstream;
  Engine engine;
  CudaStats stats;
  CudaHistory history;
};

}  // namespace stalloc
