// The figures of one device as torch shows them: what the native allocator counts, with our extents taken out and
// the blocks served from them put in. Reserved bytes stay as they are, since extents are native blocks.
//
// A peak of native plus served bytes is not the sum of two peaks. Native bytes change only when a request passes
// through; between two such moments the peak is native's level plus the highest served level, which the engine keeps.
#pragma once

#include <array>
#include <atomic>
#include <mutex>

#include "runtime/engine.h"
#include "torch/compat.h"
#include "torch/cuda_upstream.h"

namespace stalloc {

inline Bytes current(const c10::CachingAllocator::StatArray& stats) noexcept { return stats[0].current; }

class CudaStats {
 public:
  CudaStats(native::CUDAAllocator& native, const CudaUpstream& upstream, Engine& engine,
            c10::DeviceIndex device)
      : native_(native), upstream_(upstream), engine_(engine), device_(device) {}

  // Before a request or a free passes through to the native allocator. While an arena is active these are few.
  void before_native() {
    if (tracking_.load(std::memory_order_relaxed)) poll();
  }
  // Before an extent is taken: from here on the native peak would count it as the program's.
  void before_extent();

  DeviceStats merged();
  Bytes allocated_bytes() const;  // now; what the profiler is told
  void reset_peaks();
  void reset_accumulated();

 private:
  // Figures by metric, then all / small pool / large pool, as torch keeps them.
  enum Metric { kAllocation, kActive, kAllocatedBytes, kActiveBytes, kRequestedBytes, kNumMetrics };
  static constexpr std::size_t kNumPools = 3;
  using Tally = std::array<std::array<std::int64_t, kNumPools>, kNumMetrics>;
  // What differs between the native figures and the true ones.
  struct Picture {
    Tally extents_now{};
    Tally extents_total{};  // since the process began
    Tally served_now{};
    Tally served_total{};
    std::int64_t gap_blocks = 0;
    std::int64_t gap_bytes = 0;
  };
  static c10::CachingAllocator::StatArray& array_of(DeviceStats& stats, int metric);
  static void add(Tally& tally, Bytes size, Bytes requested, bool allocated);  // one live block
  static void add_totals(Tally& tally, std::size_t pool, std::int64_t blocks, Bytes bytes, Bytes requested);

  void poll();
  Picture picture() const;
  void raise_peaks(DeviceStats& stats, const Picture& picture);

  native::CUDAAllocator& native_;
  const CudaUpstream& upstream_;
  Engine& engine_;
  const c10::DeviceIndex device_;

  std::atomic<bool> tracking_{false};  // an extent was held since the peaks were reset
  std::mutex mutex_;  // guards all below
  Tally peaks_{};     // while tracking
  // At the last reset of the accumulated figures.
  Tally extents_total_then_{};
  Tally extents_freed_then_{};
  Tally served_total_then_{};
  Tally served_freed_then_{};
};

}  // namespace stalloc
