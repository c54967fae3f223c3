// Hands each call of torch's CUDA allocator interface to the native allocator. CudaAllocator overrides what the
// engine has a part in; tests/test_cuda_headers.py fails for any virtual of the installed torch that is not here.
#pragma once

#include <unordered_set>

#include "torch/compat.h"

namespace stalloc {

class ForwardingCudaAllocator : public native::CUDAAllocator {
 public:
  explicit ForwardingCudaAllocator(native::CUDAAllocator& native) : native_(native) {}

  // --- c10::Allocator ---
  c10::DataPtr allocate(std::size_t size_bytes) override { return native_.allocate(size_bytes); }
  c10::DeleterFnPtr raw_deleter() const override { return native_.raw_deleter(); }
  bool is_simple_data_ptr(const c10::DataPtr& block) const override { return native_.is_simple_data_ptr(block); }
  void copy_data(void* destination, const void* source, std::size_t size_bytes) const override {
    native_.copy_data(destination, source, size_bytes);
  }

  // --- raw blocks ---
  void* raw_alloc(std::size_t size_bytes) override { return native_.raw_alloc(size_bytes); }
  void* raw_alloc_with_stream(std::size_t size_bytes, cudaStream_t stream) override {
    return native_.raw_alloc_with_stream(size_bytes, stream);
  }
  void raw_delete(void* ptr) override { native_.raw_delete(ptr); }
  void* getBaseAllocation(void* ptr, std::size_t* size) override { return native_.getBaseAllocation(ptr, size); }
  void recordStream(const c10::DataPtr& block, c10::cuda::CUDAStream stream) override {
    native_.recordStream(block, stream);
  }
  STALLOC_SINCE_2_9(void recordStream(const c10::DataPtr& block, c10::Stream stream) override {
    recordStream(block, c10::cuda::CUDAStream(stream));
  })
  STALLOC_SINCE_2_13(c10::DataPtr allocateWithAddress(std::size_t size_bytes, void* address) override {
    return native_.allocateWithAddress(size_bytes, address);
  })

  // --- the device's memory ---
  void init(int device_count) override { native_.init(device_count); }
  bool initialized() override { return native_.initialized(); }
  double getMemoryFraction(c10::DeviceIndex device) override { return native_.getMemoryFraction(device); }
  void setMemoryFraction(double fraction, c10::DeviceIndex device) override {
    native_.setMemoryFraction(fraction, device);
  }
  void emptyCache(MempoolId_t pool) override { native_.emptyCache(pool); }
  void enable(bool value) override { native_.enable(value); }
  bool isEnabled() const override { return native_.isEnabled(); }
  void cacheInfo(c10::DeviceIndex device, std::size_t* largest_block) override {
    native_.cacheInfo(device, largest_block);
  }
  STALLOC_SINCE_2_10(
      std::vector<native::StreamSegmentSize> getExpandableSegmentSizes(c10::DeviceIndex device) override {
        return native_.getExpandableSegmentSizes(device);
      }
      std::pair<std::size_t, std::size_t> getMemoryInfo(c10::DeviceIndex device) override {
        return native_.getMemoryInfo(device);
      })

  // --- figures ---
  DeviceStats getDeviceStats(c10::DeviceIndex device) override { return native_.getDeviceStats(device); }
  void resetAccumulatedStats(c10::DeviceIndex device) override { native_.resetAccumulatedStats(device); }
  void resetPeakStats(c10::DeviceIndex device) override { native_.resetPeakStats(device); }
  native::SnapshotInfo snapshot(MempoolId_t pool STALLOC_SINCE_2_11(, bool include_traces)) override {
    return native_.snapshot(pool STALLOC_SINCE_2_11(, include_traces));
  }

  // --- memory pools and graphs ---
  void beginAllocateToPool(c10::DeviceIndex device, MempoolId_t pool,
                           std::function<bool(cudaStream_t)> filter) override {
    native_.beginAllocateToPool(device, pool, std::move(filter));
  }
  void endAllocateToPool(c10::DeviceIndex device, MempoolId_t pool) override { native_.endAllocateToPool(device, pool); }
  void releasePool(c10::DeviceIndex device, MempoolId_t pool) override { native_.releasePool(device, pool); }
  int getPoolUseCount(c10::DeviceIndex device, MempoolId_t pool) override {
    return native_.getPoolUseCount(device, pool);
  }
  void createOrIncrefPool(c10::DeviceIndex device, MempoolId_t pool, PoolAllocator allocator) override {
    native_.createOrIncrefPool(device, pool, std::move(allocator));
  }
  void setUseOnOOM(c10::DeviceIndex device, MempoolId_t pool STALLOC_SINCE_2_11(, bool use_on_oom)) override {
    native_.setUseOnOOM(device, pool STALLOC_SINCE_2_11(, use_on_oom));
  }
  bool checkPoolLiveAllocations(c10::DeviceIndex device, MempoolId_t pool,
                                const std::unordered_set<void*>& expected) override {
    return native_.checkPoolLiveAllocations(device, pool, expected);
  }
  std::shared_ptr<native::AllocatorState> getCheckpointState(c10::DeviceIndex device, MempoolId_t pool) override {
    return native_.getCheckpointState(device, pool);
  }
  native::CheckpointDelta setCheckpointPoolState(c10::DeviceIndex device,
                                                 std::shared_ptr<native::AllocatorState> state) override {
    return native_.setCheckpointPoolState(device, std::move(state));
  }
  STALLOC_SINCE_2_10(void setNoSplit(c10::DeviceIndex device, MempoolId_t pool) override {
    native_.setNoSplit(device, pool);
  })
  STALLOC_SINCE_2_13(
      void markCaptureBegin(c10::DeviceIndex device) override { native_.markCaptureBegin(device); }
      void markCaptureEnd(c10::DeviceIndex device) override { native_.markCaptureEnd(device); })

  // --- other processes and devices ---
  native::ShareableHandle shareIpcHandle(void* ptr) override { return native_.shareIpcHandle(ptr); }
  std::shared_ptr<void> getIpcDevPtr(std::string handle) override { return native_.getIpcDevPtr(std::move(handle)); }
  void enablePeerAccess(c10::DeviceIndex device, c10::DeviceIndex device_to_access) override {
    native_.enablePeerAccess(device, device_to_access);
  }
  cudaError_t memcpyAsync(void* destination, int destination_device, const void* source, int source_device,
                          std::size_t size_bytes, cudaStream_t stream, bool p2p_enabled) override {
    return native_.memcpyAsync(destination, destination_device, source, source_device, size_bytes, stream,
                               p2p_enabled);
  }

  // --- history and observers ---
  bool isHistoryEnabled() override { return native_.isHistoryEnabled(); }
  void recordHistory(bool enabled, native::CreateContextFn recorder, std::size_t max_entries,
                     native::RecordContext when,
                     bool clear STALLOC_SINCE_2_11(, const std::vector<std::string>& skip_actions)) override {
    native_.recordHistory(enabled, recorder, max_entries, when, clear STALLOC_SINCE_2_11(, skip_actions));
  }
  void recordAnnotation(const std::vector<std::pair<std::string, std::string>>& metadata) override {
    native_.recordAnnotation(metadata);
  }
  void pushCompileContext(std::string& metadata) override { native_.pushCompileContext(metadata); }
  void popCompileContext() override { native_.popCompileContext(); }
  void attachOutOfMemoryObserver(native::OutOfMemoryObserver observer) override {
    native_.attachOutOfMemoryObserver(std::move(observer));
  }
  void attachAllocatorTraceTracker(native::AllocatorTraceTracker tracker) override {
    native_.attachAllocatorTraceTracker(std::move(tracker));
  }
  STALLOC_SINCE_2_10(
      void setUserMetadata(const std::string& metadata) override { native_.setUserMetadata(metadata); }
      std::string getUserMetadata() override { return native_.getUserMetadata(); })
  STALLOC_SINCE_2_12(
      std::shared_ptr<c10::GatheredContext> getContextForPointer(const void* ptr) override {
        return native_.getContextForPointer(ptr);
      }
      void attachOomRejectionObserver(native::OomRejectionObserver observer) override {
        native_.attachOomRejectionObserver(std::move(observer));
      })
  STALLOC_SINCE_2_14(
      bool supportsUserMetadata() override { return native_.supportsUserMetadata(); }
      void annotateMemory(const void* ptr, const std::string& metadata) override {
        native_.annotateMemory(ptr, metadata);
      })

  // "native": hosts ask it to know what they may rely on, and all of that holds.
  std::string name() override { return native_.name(); }

 protected:
  native::CUDAAllocator& native_;
};

}  // namespace stalloc
