// Requests and frees: the hot path of CudaAllocator.
#include "torch/cuda_allocator.h"

#include <c10/core/impl/GPUTrace.h>
#include <c10/cuda/CUDAFunctions.h>

#include "runtime/extent_table.h"
#include "torch/cuda_limits.h"

namespace stalloc {
namespace {

constexpr Bytes kMaxRequest = Bytes{1} << 50;  // above, native's complaint is wanted

const c10::impl::PyInterpreter* gpu_trace() noexcept { return c10::impl::GPUTrace::get_trace(); }

}  // namespace

c10::DataPtr CudaAllocator::allocate(std::size_t size_bytes) {
  if (size_bytes == 0 || size_bytes > static_cast<std::size_t>(kMaxRequest) || !has_part())
    return allocate_natively(size_bytes);
  const c10::DeviceIndex index = current_device();
  void* ptr = obtain(device(index), size_bytes, c10::cuda::getCurrentCUDAStream(index).stream());
  return {ptr, ptr, &CudaAllocator::release, c10::Device(c10::DeviceType::CUDA, index)};
}

// While no engine has an arena: one look at the request, for who records and for the streams that there are.
c10::DataPtr CudaAllocator::allocate_natively(std::size_t size_bytes) {
  c10::DataPtr block = native_.allocate(size_bytes);
  (void)block.compare_exchange_deleter(native_deleter_, &CudaAllocator::release);
  CudaDevice* device = find_device(block.device().index());
  if (block.get() == nullptr || device == nullptr) return block;
  const cudaStream_t stream = c10::cuda::getCurrentCUDAStream(device->index).stream();
  device->engine.follow_stream(stream_handle(stream));
  if (device->engine.is_recording() && !is_for_pool(*device, stream))
    device->engine.note_upstream_allocation(block.get(), static_cast<Bytes>(size_bytes), stream_handle(stream));
  return block;
}

// Whether an engine has or may want a part in requests.
bool CudaAllocator::has_part() const noexcept {
  if (!enabled_.load(std::memory_order_relaxed)) return false;
  bool result = false;
  for_each_device([&result](const CudaDevice& device) {
    result = result || device.engine.is_serving() || device.engine.extent_bytes() != 0;
  });
  return result;
}

// A pool's request is no part of the program's sequence: the engine neither serves nor notes it.
bool CudaAllocator::is_for_pool(const CudaDevice& device, cudaStream_t stream) const {
  return routes_.any_open() && routes_.claims(device.index, stream);
}

c10::DeviceIndex CudaAllocator::current_device() const {
  return has_one_device_.load(std::memory_order_relaxed) ? c10::DeviceIndex{0} : c10::cuda::current_device();
}

c10::DeleterFnPtr CudaAllocator::raw_deleter() const {
  return enabled_.load(std::memory_order_relaxed) ? &CudaAllocator::release : native_.raw_deleter();
}

void* CudaAllocator::raw_alloc(std::size_t size_bytes) {
  if (size_bytes == 0 || !enabled_.load(std::memory_order_relaxed)) return native_.raw_alloc(size_bytes);
  const c10::DeviceIndex index = current_device();
  return obtain(device(index), size_bytes, c10::cuda::getCurrentCUDAStream(index).stream());
}

void* CudaAllocator::raw_alloc_with_stream(std::size_t size_bytes, cudaStream_t stream) {
  if (size_bytes == 0 || !enabled_.load(std::memory_order_relaxed))
    return native_.raw_alloc_with_stream(size_bytes, stream);
  return obtain(device(current_device()), size_bytes, stream);
}

// `device` is the current one.
void* CudaAllocator::obtain(CudaDevice& device, std::size_t size_bytes, cudaStream_t stream) {
  const auto size = static_cast<Bytes>(size_bytes);
  const StreamHandle handle = stream_handle(stream);
  const bool for_pool = is_for_pool(device, stream);
  if (for_pool) {
    device.engine.follow_stream(handle);
  } else {
    if (void* served = device.engine.try_allocate(size, handle)) {
      if (device.history.is_watching()) device.history.note_allocation(served, size, handle);
      report(device, served, round_up(size, kAlignment));
      return served;
    }
  }
  void* ptr = pass_through(device, size_bytes, stream);
  if (!for_pool && device.engine.is_recording()) device.engine.note_upstream_allocation(ptr, size, handle);
  return ptr;
}

// The native allocator's request. What we hold and do not need never makes it fail.
void* CudaAllocator::pass_through(CudaDevice& device, std::size_t size_bytes, cudaStream_t stream) {
  if (device.engine.extent_bytes() == 0) return native_.raw_alloc_with_stream(size_bytes, stream);
  device.stats.before_native();
  make_room(device, static_cast<Bytes>(size_bytes));
  void* ptr = nullptr;
  try {
    ptr = native_.raw_alloc_with_stream(size_bytes, stream);
  } catch (const c10::OutOfMemoryError&) {
    if (give_back(device) == 0) throw;
  }
  if (ptr == nullptr) ptr = native_.raw_alloc_with_stream(size_bytes, stream);
  return ptr;
}

// Before a request that would fail: a failure runs observers and counts, even if a second try succeeds. Small
// requests are not worth the look at the driver: they fail only at the very end.
void CudaAllocator::make_room(CudaDevice& device, Bytes size) {
  if (size <= kSmallRequest || routes_.any_open() || device.engine.trimmable_bytes() == 0) return;
  if (has_cached_block(native_, device.index, size) || has_room_for_segment(native_, device.index, size)) return;
  (void)device.engine.trim(true);
}

// After a failure: all that can be given back, after waiting for the streams that blocks wait for, as native does.
Bytes CudaAllocator::give_back(CudaDevice& device) {
  if (!routes_.any_open() && device.engine.stats().awaiting_bytes > 0) (void)cudaDeviceSynchronize();
  return device.engine.trim(true);
}

void CudaAllocator::release(void* ptr) noexcept {
  if (ptr == nullptr) return;
  CudaAllocator& self = *installed();
  if (Engine* owner = ExtentTable::owner(ptr)) {
    self.release_served(*owner, ptr);
    return;
  }
  self.before_native_free(ptr);
  self.native_deleter_(ptr);
}

void CudaAllocator::raw_delete(void* ptr) {
  if (Engine* owner = ExtentTable::owner(ptr)) {
    release_served(*owner, ptr);
    return;
  }
  if (ptr != nullptr) before_native_free(ptr);
  native_.raw_delete(ptr);
}

void CudaAllocator::release_served(Engine& owner, void* ptr) {
  CudaDevice& device = device_of(owner);
  const bool watched = device.history.is_watching();
  if (!watched && !c10::memoryProfilingEnabled() && gpu_trace() == nullptr) {
    owner.deallocate(ptr);
    return;
  }
  void* base = nullptr;
  Bytes size = 0;
  StreamHandle stream = 0;
  if (!owner.find_block(ptr, &base, &size, &stream) || base != ptr) return owner.deallocate(ptr);  // counts it
  if (watched) device.history.note_free(ptr, size, stream);
  owner.deallocate(ptr);
  report(device, ptr, -size);
}

// First the note: once native has the block back, another thread may be given its address. Only the engine of the
// pointer's device knows it; the others ignore a free of what they never saw.
void CudaAllocator::before_native_free(void* ptr) {
  for_each_device([ptr](CudaDevice& device) {
    if (device.engine.is_recording()) device.engine.note_upstream_free(ptr);
    device.stats.before_native();
  });
}

// To the profiler and the GPU trace, as the native allocator reports its own; `change` in bytes, negative for a free.
void CudaAllocator::report(CudaDevice& device, const void* ptr, Bytes change) const {
  void* address = const_cast<void*>(ptr);
  if (const c10::impl::PyInterpreter* interpreter = gpu_trace()) {
    const auto traced = reinterpret_cast<std::uintptr_t>(ptr);
    if (change > 0) (*interpreter)->trace_gpu_memory_allocation(c10::kCUDA, traced);
    else (*interpreter)->trace_gpu_memory_deallocation(c10::kCUDA, traced);
  }
  if (!c10::memoryProfilingEnabled()) return;
  const Bytes reserved = current(native_.getDeviceStats(device.index).reserved_bytes);
  c10::reportMemoryUsageToProfiler(address, change, static_cast<std::size_t>(device.stats.allocated_bytes()),
                                   static_cast<std::size_t>(reserved),
                                   c10::Device(c10::DeviceType::CUDA, device.index));
}

void CudaAllocator::recordStream(const c10::DataPtr& block, c10::cuda::CUDAStream stream) {
  void* ptr = block.get();
  if (ptr == nullptr) return;
  if (Engine* owner = ExtentTable::owner(ptr)) {
    owner->record_stream(ptr, device_of(*owner).upstream.handle_of(stream));
    return;
  }
  if (block.get_deleter() != &CudaAllocator::release) return native_.recordStream(block, stream);
  CudaDevice* device = find_device(block.device().index());
  if (device != nullptr) {
    const StreamHandle handle = device->upstream.handle_of(stream);
    if (device->engine.is_recording()) device->engine.record_stream(ptr, handle);
    else device->engine.follow_stream(handle);
  }
  // The native allocator ignores, silently, a block whose deleter is not its own. The view never frees.
  c10::DataPtr view(ptr, block.get_context(), native_deleter_, block.device());
  try {
    native_.recordStream(view, stream);
  } catch (...) {
    (void)view.release_context();
    throw;
  }
  (void)view.release_context();
}

void CudaAllocator::enable(bool value) {
  native_.enable(value);
  enabled_.store(value);
}

}  // namespace stalloc
