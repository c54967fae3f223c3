// CudaAllocator's answers that know of extents, and its part in pools and graphs.
#include <algorithm>

#include "runtime/extent_table.h"
#include "torch/cuda_allocator.h"
#include "torch/cuda_snapshot.h"

namespace stalloc {

// --- memory ---

// Gives the arena's empty extents back first, so that they leave the process with the native cache. While a plan is
// active its extents stay: the next request would take them again.
void CudaAllocator::emptyCache(MempoolId_t pool) {
  if (pool == MempoolId_t{0, 0}) for_each_device([](CudaDevice& device) { (void)device.engine.trim(false); });
  native_.emptyCache(pool);
}

// cuDNN picks its algorithms by the largest block that can be had.
void CudaAllocator::cacheInfo(c10::DeviceIndex index, std::size_t* largest_block) {
  native_.cacheInfo(index, largest_block);
  CudaDevice* found = find_device(index);
  if (found == nullptr || found->engine.extent_bytes() == 0) return;
  for (const auto& block : found->engine.blocks())
    if (block.requested == 0) *largest_block = std::max(*largest_block, static_cast<std::size_t>(block.size));
}

void* CudaAllocator::getBaseAllocation(void* ptr, std::size_t* size) {
  if (Engine* owner = ExtentTable::owner(ptr))
    if (const auto extent = device_of(*owner).upstream.extent_of(ptr))
      return native_.getBaseAllocation(reinterpret_cast<void*>(extent->base), size);
  return native_.getBaseAllocation(ptr, size);
}

native::ShareableHandle CudaAllocator::shareIpcHandle(void* ptr) {
  expandable_.allow_sharing();
  if (Engine* owner = ExtentTable::owner(ptr)) {
    if (const auto extent = device_of(*owner).upstream.extent_of(ptr)) {
      native::ShareableHandle handle = native_.shareIpcHandle(reinterpret_cast<void*>(extent->base));
      handle.offset += static_cast<std::ptrdiff_t>(reinterpret_cast<std::uintptr_t>(ptr) - extent->base);
      return handle;
    }
  }
  return native_.shareIpcHandle(ptr);
}

// --- figures ---

// A device that we have never met has the native figures, and native's complaint if it does not exist.

DeviceStats CudaAllocator::getDeviceStats(c10::DeviceIndex index) {
  CudaDevice* found = find_device(index);
  return found == nullptr ? native_.getDeviceStats(index) : found->stats.merged();
}

void CudaAllocator::resetAccumulatedStats(c10::DeviceIndex index) {
  CudaDevice* found = find_device(index);
  found == nullptr ? native_.resetAccumulatedStats(index) : found->stats.reset_accumulated();
}

void CudaAllocator::resetPeakStats(c10::DeviceIndex index) {
  CudaDevice* found = find_device(index);
  found == nullptr ? native_.resetPeakStats(index) : found->stats.reset_peaks();
}

// --- history ---

native::SnapshotInfo CudaAllocator::snapshot(MempoolId_t pool STALLOC_SINCE_2_11(, bool include_traces)) {
  native::SnapshotInfo info = native_.snapshot(pool STALLOC_SINCE_2_11(, include_traces));
  const auto to_us = clock();
  for_each_device([&](CudaDevice& device) {
    split_extents(info, device.upstream, device.engine, device.history);
    const auto index = static_cast<std::size_t>(device.index);
    if (to_us && index < info.device_traces.size())
      merge_traces(info.device_traces[index], device.upstream, device.history, to_us);
  });
  return info;
}

// From the clock's ticks to microseconds since 1970; empty while no history was ever kept.
std::function<std::int64_t(c10::approx_time_t)> CudaAllocator::clock() {
  const std::lock_guard<std::mutex> lock(setup_mutex_);
  if (clock_ == nullptr) return {};
  return [to_ns = clock_->makeConverter()](c10::approx_time_t ticks) { return to_ns(ticks) / 1000; };
}

void CudaAllocator::recordHistory(bool enabled, native::CreateContextFn recorder, std::size_t max_entries,
                                  native::RecordContext when,
                                  bool clear STALLOC_SINCE_2_11(, const std::vector<std::string>& skip_actions)) {
  native_.recordHistory(enabled, recorder, max_entries, when, clear STALLOC_SINCE_2_11(, skip_actions));
  std::unordered_set<std::string> skipped;
  STALLOC_SINCE_2_11(skipped.insert(skip_actions.begin(), skip_actions.end());)
  const std::lock_guard<std::mutex> lock(setup_mutex_);
  if (clock_ == nullptr) clock_ = std::make_unique<c10::ApproximateClockToUnixTimeConverter>();
  set_up_history_ = [=](CudaHistory& history) {
    history.configure(enabled, recorder, max_entries, when, clear, skipped);
  };
  for_each_device([this](CudaDevice& device) { set_up_history_(device.history); });
}

void CudaAllocator::attachAllocatorTraceTracker(native::AllocatorTraceTracker tracker) {
  native_.attachAllocatorTraceTracker(tracker);
  const std::lock_guard<std::mutex> lock(setup_mutex_);
  trackers_.push_back(tracker);
  for_each_device([&](CudaDevice& device) { device.history.attach(tracker); });
}

void CudaAllocator::pushCompileContext(std::string& metadata) {
  native_.pushCompileContext(metadata);
  push_compile_context(metadata);
}

void CudaAllocator::popCompileContext() {
  native_.popCompileContext();
  pop_compile_context();
}

STALLOC_SINCE_2_12(
    std::shared_ptr<c10::GatheredContext> CudaAllocator::getContextForPointer(const void* ptr) {
      if (Engine* owner = ExtentTable::owner(ptr)) return device_of(*owner).history.context_of(ptr);
      return native_.getContextForPointer(ptr);
    })

STALLOC_SINCE_2_14(
    void CudaAllocator::annotateMemory(const void* ptr, const std::string& metadata) {
      Engine* owner = ExtentTable::owner(ptr);
      if (owner == nullptr) return native_.annotateMemory(ptr, metadata);
      CudaHistory& history = device_of(*owner).history;
      if (history.is_watching()) history.note_annotation(ptr, metadata);
    })

// --- pools and graphs ---

void CudaAllocator::beginAllocateToPool(c10::DeviceIndex index, MempoolId_t pool,
                                        std::function<bool(cudaStream_t)> filter) {
  expandable_.forbid();
  // Ours first: from here on no event is touched, and the capture begins after this call.
  routes_.open(index, pool, filter);
  try {
    native_.beginAllocateToPool(index, pool, std::move(filter));
  } catch (...) {
    routes_.close(index, pool);
    throw;
  }
}

void CudaAllocator::endAllocateToPool(c10::DeviceIndex index, MempoolId_t pool) {
  native_.endAllocateToPool(index, pool);
  routes_.close(index, pool);
}

native::CheckpointDelta CudaAllocator::setCheckpointPoolState(c10::DeviceIndex index,
                                                              std::shared_ptr<native::AllocatorState> state) {
  native::CheckpointDelta delta = native_.setCheckpointPoolState(index, std::move(state));
  for (c10::DataPtr& block : delta.dataptrs_allocd)
    (void)block.compare_exchange_deleter(native_deleter_, &CudaAllocator::release);
  return delta;
}

STALLOC_SINCE_2_13(
    c10::DataPtr CudaAllocator::allocateWithAddress(std::size_t size_bytes, void* address) {
      c10::DataPtr block = native_.allocateWithAddress(size_bytes, address);
      (void)block.compare_exchange_deleter(native_deleter_, &CudaAllocator::release);
      return block;
    })

}  // namespace stalloc
