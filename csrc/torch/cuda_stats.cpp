#include "torch/cuda_stats.h"

#include <algorithm>

namespace stalloc {
namespace {

constexpr std::size_t kAll = 0;
std::size_t pool_of(Bytes size) noexcept { return size <= kSmallRequest ? 1 : 2; }

template <typename Tally>
Tally difference(const Tally& a, const Tally& b) {
  Tally result = a;
  for (std::size_t metric = 0; metric < a.size(); ++metric)
    for (std::size_t pool = 0; pool < a[metric].size(); ++pool) result[metric][pool] -= b[metric][pool];
  return result;
}

}  // namespace

c10::CachingAllocator::StatArray& CudaStats::array_of(DeviceStats& stats, int metric) {
  switch (metric) {
    case kAllocation: return stats.allocation;
    case kActive: return stats.active;
    case kAllocatedBytes: return stats.allocated_bytes;
    case kActiveBytes: return stats.active_bytes;
    default: return stats.requested_bytes;
  }
}

void CudaStats::add(Tally& tally, Bytes size, Bytes requested, bool allocated) {
  for (const std::size_t pool : {kAll, pool_of(size)}) {
    ++tally[kActive][pool];
    tally[kActiveBytes][pool] += size;
    tally[kRequestedBytes][pool] += requested;
    if (!allocated) continue;  // freed by the program, waiting for a stream
    ++tally[kAllocation][pool];
    tally[kAllocatedBytes][pool] += size;
  }
}

void CudaStats::before_extent() {
  DeviceStats stats = native_.getDeviceStats(device_);
  const std::lock_guard<std::mutex> lock(mutex_);
  if (tracking_.load(std::memory_order_relaxed)) return;
  for (int metric = 0; metric < kNumMetrics; ++metric)
    for (std::size_t pool = 0; pool < kNumPools; ++pool)
      peaks_[static_cast<std::size_t>(metric)][pool] = array_of(stats, metric)[pool].peak;
  (void)engine_.take_interval_peaks();
  tracking_.store(true, std::memory_order_relaxed);
}

// The quick look: totals only, no walk over the blocks.
void CudaStats::poll() {
  DeviceStats stats = native_.getDeviceStats(device_);
  const CudaUpstream::Taken held = upstream_.held();
  const EngineStats served = engine_.stats();
  const ServedLevels peaks = engine_.take_interval_peaks();
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto raise = [&](Metric metric, std::size_t pool, std::int64_t change) {
    auto& peak = peaks_[metric][pool];
    peak = std::max(peak, array_of(stats, metric)[pool].current + change);
  };
  for (std::size_t pool = kAll; pool < kNumPools; ++pool) {
    const std::int64_t num_extents = pool == kAll ? held.count[0] + held.count[1] : held.count[pool - 1];
    const Bytes extent_bytes = pool == kAll ? held.bytes[0] + held.bytes[1] : held.bytes[pool - 1];
    raise(kAllocation, pool, peaks[pool].blocks - num_extents);
    raise(kActive, pool, peaks[pool].blocks - num_extents);
    raise(kAllocatedBytes, pool, peaks[pool].bytes - extent_bytes);
    raise(kActiveBytes, pool, peaks[pool].bytes - extent_bytes + (pool == kAll ? served.awaiting_bytes : 0));
  }
  // How much of the rounding lived at the peak is not kept: up to 511 bytes a block too much.
  const Bytes highest = std::max(peaks[kAll].bytes, served.served_bytes);
  const Bytes above = highest - served.served_bytes;  // what lived at the peak and is gone
  raise(kRequestedBytes, kAll,
        std::min(served.served_requested_bytes + above, highest) - held.bytes[0] - held.bytes[1]);
}

void CudaStats::add_totals(Tally& tally, std::size_t pool, std::int64_t blocks, Bytes bytes, Bytes requested) {
  for (const std::size_t entry : {kAll, pool}) {
    tally[kAllocation][entry] += blocks;
    tally[kActive][entry] += blocks;
    tally[kAllocatedBytes][entry] += bytes;
    tally[kActiveBytes][entry] += bytes;
    tally[kRequestedBytes][entry] += requested;
  }
}

CudaStats::Picture CudaStats::picture() const {
  Picture result;
  for (const auto& extent : upstream_.extents()) add(result.extents_now, extent.block_size, extent.size, true);
  for (const auto& block : engine_.blocks()) {
    if (block.requested > 0) {
      add(result.served_now, block.size, block.requested, !block.awaiting_free);
    } else {
      ++result.gap_blocks;
      result.gap_bytes += block.size;
    }
  }
  const CudaUpstream::Taken taken = upstream_.taken();
  const EngineStats stats = engine_.stats();
  for (std::size_t size_class = 0; size_class < taken.count.size(); ++size_class) {
    const std::size_t pool = size_class + 1;
    add_totals(result.extents_total, pool, taken.count[size_class], taken.bytes[size_class], taken.bytes[size_class]);
    add_totals(result.served_total, pool, stats.total_blocks[size_class], stats.total_bytes[size_class],
               stats.total_requested_bytes[size_class]);
  }
  return result;
}

// Corrects the current levels in `stats`, and the peaks with them.
void CudaStats::raise_peaks(DeviceStats& stats, const Picture& now) {
  for (int metric = 0; metric < kNumMetrics; ++metric) {
    const auto m = static_cast<std::size_t>(metric);
    for (std::size_t pool = 0; pool < kNumPools; ++pool) {
      auto& stat = array_of(stats, metric)[pool];
      stat.current += now.served_now[m][pool] - now.extents_now[m][pool];
      peaks_[m][pool] = std::max(peaks_[m][pool], stat.current);
      stat.peak = peaks_[m][pool];
    }
  }
}

DeviceStats CudaStats::merged() {
  const bool tracking = tracking_.load(std::memory_order_relaxed);
  if (!tracking && upstream_.distinct_extents().empty()) return native_.getDeviceStats(device_);
  if (tracking) poll();
  DeviceStats stats = native_.getDeviceStats(device_);
  const Picture now = picture();
  const std::lock_guard<std::mutex> lock(mutex_);
  if (tracking) raise_peaks(stats, now);
  const Tally extents_freed = difference(now.extents_total, now.extents_now);
  const Tally served_freed = difference(now.served_total, now.served_now);
  for (int metric = 0; metric < kNumMetrics; ++metric) {
    const auto m = static_cast<std::size_t>(metric);
    for (std::size_t pool = 0; pool < kNumPools; ++pool) {
      auto& stat = array_of(stats, metric)[pool];
      stat.allocated += (now.served_total[m][pool] - served_total_then_[m][pool]) -
                        (now.extents_total[m][pool] - extents_total_then_[m][pool]);
      stat.freed += (served_freed[m][pool] - served_freed_then_[m][pool]) -
                    (extents_freed[m][pool] - extents_freed_then_[m][pool]);
    }
  }
  for (const std::size_t pool : {kAll, std::size_t{2}}) {
    stats.inactive_split[pool].current += now.gap_blocks;
    stats.inactive_split_bytes[pool].current += now.gap_bytes;
    stats.inactive_split[pool].peak = std::max(stats.inactive_split[pool].peak, stats.inactive_split[pool].current);
    stats.inactive_split_bytes[pool].peak =
        std::max(stats.inactive_split_bytes[pool].peak, stats.inactive_split_bytes[pool].current);
  }
  return stats;
}

Bytes CudaStats::allocated_bytes() const {
  return current(native_.getDeviceStats(device_).allocated_bytes) - upstream_.held_bytes() + engine_.served_bytes();
}

void CudaStats::reset_peaks() {
  native_.resetPeakStats(device_);
  DeviceStats stats = native_.getDeviceStats(device_);
  const Picture now = picture();
  const bool holds_extents = upstream_.num_held() > 0;
  (void)engine_.take_interval_peaks();
  const std::lock_guard<std::mutex> lock(mutex_);
  for (auto& metric : peaks_) metric.fill(0);
  raise_peaks(stats, now);
  tracking_.store(holds_extents, std::memory_order_relaxed);
}

void CudaStats::reset_accumulated() {
  native_.resetAccumulatedStats(device_);
  const Picture now = picture();
  const std::lock_guard<std::mutex> lock(mutex_);
  extents_total_then_ = now.extents_total;
  extents_freed_then_ = difference(now.extents_total, now.extents_now);
  served_total_then_ = now.served_total;
  served_freed_then_ = difference(now.served_total, now.served_now);
}

}  // namespace stalloc
