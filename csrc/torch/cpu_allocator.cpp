#include "torch/cpu_allocator.h"

#include <c10/core/CPUAllocator.h>
#include <pthread.h>

#include <atomic>
#include <mutex>

#include "runtime/extent_table.h"

namespace stalloc {
namespace {

// What a thread asks for is taken for a stream of its own: other threads (those of Gloo, for one) come and go between
// the requests of the thread that trains, in an order that no step repeats. Which handle means nothing to the upstream.
constexpr StreamHandle kTrainingThread = 0;
constexpr StreamHandle kOtherThreads = 1;
const c10::Device kHost{c10::DeviceType::CPU};

// Written once, never destroyed: tensors outlive every static of this library.
std::atomic<CpuAllocator*> the_allocator{nullptr};

void become_forked_child() noexcept {
  if (CpuAllocator* allocator = CpuAllocator::installed()) allocator->engine().become_forked_child();
}

}  // namespace

CpuAllocator::CpuAllocator(c10::Allocator& native, c10::DeleterFnPtr native_deleter)
    : native_(native), native_deleter_(native_deleter), training_thread_(pthread_self()), engine_(upstream_) {}

StreamHandle CpuAllocator::stream_of_caller() const noexcept {
  return pthread_equal(pthread_self(), training_thread_) != 0 ? kTrainingThread : kOtherThreads;
}

CpuAllocator* CpuAllocator::installed() noexcept { return the_allocator.load(std::memory_order_acquire); }

CpuAllocator& CpuAllocator::install() {
  static std::mutex mutex;  // guards the installation
  std::lock_guard<std::mutex> lock(mutex);
  if (CpuAllocator* allocator = installed()) return *allocator;

  c10::Allocator* native = c10::GetCPUAllocator();
  const c10::DeleterFnPtr native_deleter = native->raw_deleter();
  if (native_deleter == nullptr) {
    throw Error(
        "install: raw_deleter=null, torch's present CPU allocator must have one deleter for all its blocks. "
        "Remove the extension that replaced torch's CPU allocator.");
  }
  auto* allocator = new CpuAllocator(*native, native_deleter);
  // The deleter finds the allocator here: before the first block can be handed out.
  the_allocator.store(allocator, std::memory_order_release);
  c10::SetCPUAllocator(allocator);
  if (c10::GetCPUAllocator() != allocator) {
    the_allocator.store(nullptr, std::memory_order_release);
    delete allocator;
    throw Error(
        "install: priority=0, torch's present CPU allocator was set with a higher one. "
        "Remove the extension that replaced torch's CPU allocator.");
  }
  pthread_atfork(nullptr, nullptr, &become_forked_child);
  return *allocator;
}

c10::DataPtr CpuAllocator::allocate(std::size_t size_bytes) {
  const Bytes size = static_cast<Bytes>(size_bytes);
  // Of zero bytes there is nothing to serve, and a negative number is native's to complain about.
  if (size > 0) {
    if (void* served = engine_.try_allocate(size, stream_of_caller())) {
      c10::profiledCPUMemoryReporter().New(served, size_bytes);
      return {served, served, &CpuAllocator::release, kHost};
    }
  }
  c10::DataPtr block = native_.allocate(size_bytes);
  void* ptr = block.release_context();  // native has one deleter, so pointer and context are one
  if (ptr != nullptr && engine_.is_recording()) engine_.note_upstream_allocation(ptr, size, stream_of_caller());
  return {ptr, ptr, &CpuAllocator::release, kHost};
}

void CpuAllocator::release(void* ptr) noexcept {
  if (ptr == nullptr) return;
  CpuAllocator& allocator = *the_allocator.load(std::memory_order_relaxed);
  // When another thread frees is not told by the order of requests.
  if (allocator.engine_.is_recording() && allocator.stream_of_caller() != kTrainingThread)
    allocator.engine_.note_stream_use(ptr, kOtherThreads);
  if (Engine* owner = ExtentTable::owner(ptr)) {
    c10::profiledCPUMemoryReporter().Delete(ptr);
    owner->deallocate(ptr);
    return;
  }
  // First the note: once native has the block back, another thread may be given its address.
  if (allocator.engine_.is_recording()) allocator.engine_.note_upstream_free(ptr);
  allocator.native_deleter_(ptr);
}

c10::DeleterFnPtr CpuAllocator::raw_deleter() const { return &CpuAllocator::release; }

void CpuAllocator::copy_data(void* destination, const void* source, std::size_t size_bytes) const {
  native_.copy_data(destination, source, size_bytes);
}

}  // namespace stalloc
