// torch's allocator of CUDA memory: what an engine has a place for comes from its arena, all else from the native
// allocator, whose answers are corrected where our extents would show in them.
#pragma once

#include <c10/util/ApproximateClock.h>

#include <array>
#include <atomic>
#include <mutex>

#include "torch/cuda_device.h"
#include "torch/cuda_expandable.h"
#include "torch/cuda_forwarding.h"
#include "torch/cuda_pool_routes.h"

namespace stalloc {

class CudaAllocator final : public ForwardingCudaAllocator {
 public:
  static constexpr c10::DeviceIndex kMaxDevices = 127;
  static_assert(kMaxDevices >= C10_COMPILE_TIME_MAX_GPUS);

  // Puts the one CudaAllocator of the process in place; idempotent. May run before CUDA is initialized and makes no
  // CUDA call then. Throws Error, with nothing changed, where we have to stay off. There is no way back: storages
  // keep our pointer, so to leave means to deactivate the engines and pass everything through.
  static CudaAllocator& install();
  static CudaAllocator* installed() noexcept;

  CudaDevice& device(c10::DeviceIndex index);  // throws Error when out of range
  native::CUDAAllocator& native() noexcept { return native_; }
  CudaExpandable& expandable() noexcept { return expandable_; }

  // --- requests and frees: cuda_allocator.cpp ---
  c10::DataPtr allocate(std::size_t size_bytes) override;
  c10::DeleterFnPtr raw_deleter() const override;
  void* raw_alloc(std::size_t size_bytes) override;
  void* raw_alloc_with_stream(std::size_t size_bytes, cudaStream_t stream) override;
  void raw_delete(void* ptr) override;
  void recordStream(const c10::DataPtr& block, c10::cuda::CUDAStream stream) override;
  void enable(bool value) override;
  void init(int device_count) override;

  // --- answers that know of extents: cuda_answers.cpp ---
  void emptyCache(MempoolId_t pool) override;
  void cacheInfo(c10::DeviceIndex index, std::size_t* largest_block) override;
  void* getBaseAllocation(void* ptr, std::size_t* size) override;
  native::ShareableHandle shareIpcHandle(void* ptr) override;
  DeviceStats getDeviceStats(c10::DeviceIndex index) override;
  void resetAccumulatedStats(c10::DeviceIndex index) override;
  void resetPeakStats(c10::DeviceIndex index) override;
  native::SnapshotInfo snapshot(MempoolId_t pool STALLOC_SINCE_2_11(, bool include_traces)) override;
  void recordHistory(bool enabled, native::CreateContextFn recorder, std::size_t max_entries,
                     native::RecordContext when,
                     bool clear STALLOC_SINCE_2_11(, const std::vector<std::string>& skip_actions)) override;
  void pushCompileContext(std::string& metadata) override;
  void popCompileContext() override;
  void attachAllocatorTraceTracker(native::AllocatorTraceTracker tracker) override;
  STALLOC_SINCE_2_12(std::shared_ptr<c10::GatheredContext> getContextForPointer(const void* ptr) override;)
  STALLOC_SINCE_2_14(void annotateMemory(const void* ptr, const std::string& metadata) override;)

  // --- pools and graphs: cuda_answers.cpp ---
  void beginAllocateToPool(c10::DeviceIndex index, MempoolId_t pool,
                           std::function<bool(cudaStream_t)> filter) override;
  void endAllocateToPool(c10::DeviceIndex index, MempoolId_t pool) override;
  native::CheckpointDelta setCheckpointPoolState(c10::DeviceIndex index,
                                                 std::shared_ptr<native::AllocatorState> state) override;
  STALLOC_SINCE_2_13(c10::DataPtr allocateWithAddress(std::size_t size_bytes, void* address) override;)

 private:
  CudaAllocator(native::CUDAAllocator& native, c10::DeleterFnPtr native_deleter)
      : ForwardingCudaAllocator(native), native_deleter_(native_deleter) {}

  static void release(void* ptr) noexcept;  // the deleter of every block, served or not
  static void become_forked_child() noexcept;

  bool has_part() const noexcept;
  bool is_for_pool(const CudaDevice& device, cudaStream_t stream) const;
  c10::DeviceIndex current_device() const;
  c10::DataPtr allocate_natively(std::size_t size_bytes);
  void* obtain(CudaDevice& device, std::size_t size_bytes, cudaStream_t stream);
  void* pass_through(CudaDevice& device, std::size_t size_bytes, cudaStream_t stream);
  void make_room(CudaDevice& device, Bytes size);
  Bytes give_back(CudaDevice& device);
  void release_served(Engine& owner, void* ptr);
  void before_native_free(void* ptr);
  void report(CudaDevice& device, const void* ptr, Bytes change) const;

  CudaDevice* find_device(c10::DeviceIndex index) noexcept;
  CudaDevice& device_of(const Engine& engine) noexcept;  // of an engine that owns an extent
  template <typename Function>
  void for_each_device(Function function) const {
    const std::size_t end = devices_end_.load(std::memory_order_acquire);
    for (std::size_t i = 0; i < end; ++i)
      if (CudaDevice* device = devices_[i].load(std::memory_order_acquire)) function(*device);
  }
  std::function<std::int64_t(c10::approx_time_t)> clock();

  const c10::DeleterFnPtr native_deleter_;
  CudaPoolRoutes routes_;
  CudaExpandable expandable_;
  std::atomic<bool> enabled_{true};  // torch's own switch; off, nothing is cached and blocks have another deleter
  std::atomic<bool> has_one_device_{false};  // then the current one is known without asking, which takes 80 ns
  std::array<std::atomic<CudaDevice*>, kMaxDevices> devices_{};
  std::atomic<std::size_t> devices_end_{0};  // from here on none was made

  std::mutex setup_mutex_;  // guards the making of devices and all below
  std::function<void(CudaHistory&)> set_up_history_;  // what a device made later still has to be told
  std::vector<native::AllocatorTraceTracker> trackers_;
  std::unique_ptr<c10::ApproximateClockToUnixTimeConverter> clock_;
};

}  // namespace stalloc
