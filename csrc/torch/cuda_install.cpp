// How CudaAllocator comes into a process, and its devices into being.
#include <c10/cuda/CUDAFunctions.h>
#include <c10/util/env.h>
#include <pthread.h>

#include <algorithm>

#include "torch/cuda_allocator.h"

namespace stalloc {
namespace {

// Written once, never destroyed: tensors outlive every static of this library.
std::atomic<CudaAllocator*> the_allocator{nullptr};

[[noreturn]] void refuse(const std::string& name, const std::string& value, const std::string& rule,
                         const std::string& remedy) {
  throw Error("install: " + name + "=" + value + ", " + rule + ". " + remedy);
}

// Throws where we have to stay off.
void check_may_install(native::CUDAAllocator& present) {
  const std::string name = present.name();
  if (name != "native") {
    refuse("allocator", name, "only torch's native CUDA allocator can be wrapped",
           "Remove the backend from PYTORCH_CUDA_ALLOC_CONF, or the custom allocator from the program.");
  }
  if (c10::utils::check_env("PYTORCH_NO_CUDA_MEMORY_CACHING") == true)
    refuse("PYTORCH_NO_CUDA_MEMORY_CACHING", "1", "torch does not cache memory", "Unset the variable.");
  if (!present.isEnabled())
    refuse("caching_allocator_enable", "False", "torch does not cache memory", "Enable it before.");
  if (c10::GetAllocator(c10::DeviceType::CUDA) != &present) {
    refuse("allocator", "unknown", "torch's storages use another allocator than its CUDA calls",
           "Remove the extension that replaced torch's CUDA allocator.");
  }
  if (!present.initialized()) return;  // nothing can have been captured yet
  // Blocks of pools made before us carry native's deleter, which torch.compile's graphs compare with ours.
  const native::SnapshotInfo info = take_snapshot(present, {0, 0}, false);
  const bool has_pools = std::any_of(info.segments.begin(), info.segments.end(), [](const auto& segment) {
    return segment.owner_private_pool_id != MempoolId_t{0, 0};
  });
  if (has_pools) {
    refuse("graph_pools", "present", "CUDA graphs or memory pools were made before us",
           "Start stalloc before the first graph is captured.");
  }
}

}  // namespace

CudaAllocator* CudaAllocator::installed() noexcept { return the_allocator.load(std::memory_order_acquire); }

CudaAllocator& CudaAllocator::install() {
  static std::mutex mutex;  // guards the installation
  const std::lock_guard<std::mutex> lock(mutex);
  if (CudaAllocator* allocator = installed()) return *allocator;

  native::CUDAAllocator* present = native::get();
  check_may_install(*present);
  auto* allocator = new CudaAllocator(*present, present->raw_deleter());
  if (present->initialized()) allocator->has_one_device_.store(c10::cuda::device_count() == 1);
  if (present->initialized() && present->isHistoryEnabled()) {
    // Who asked for the history is not known, so our entries come without frames.
    constexpr std::size_t kMaxEntries = 1000000;
    allocator->clock_ = std::make_unique<c10::ApproximateClockToUnixTimeConverter>();
    allocator->set_up_history_ = [](CudaHistory& history) {
      history.configure(true, nullptr, kMaxEntries, native::RecordContext::ALL, false, {});
    };
  }
  // The deleter finds the allocator here: before the first block can be handed out.
  the_allocator.store(allocator, std::memory_order_release);
  c10::SetAllocator(c10::DeviceType::CUDA, allocator);
  if (c10::GetAllocator(c10::DeviceType::CUDA) != allocator) {
    the_allocator.store(nullptr, std::memory_order_release);
    delete allocator;
    refuse("priority", "0", "torch's present CUDA allocator was set with a higher one",
           "Remove the extension that replaced torch's CUDA allocator.");
  }
  native::allocator.store(allocator);
  pthread_atfork(nullptr, nullptr, &CudaAllocator::become_forked_child);
  return *allocator;
}

void CudaAllocator::init(int device_count) {
  native_.init(device_count);
  has_one_device_.store(device_count == 1);
  expandable_.on_initialized();
}

void CudaAllocator::become_forked_child() noexcept {
  if (CudaAllocator* allocator = installed())
    allocator->for_each_device([](CudaDevice& device) { device.engine.become_forked_child(); });
}

CudaDevice* CudaAllocator::find_device(c10::DeviceIndex index) noexcept {
  if (index < 0 || index >= kMaxDevices) return nullptr;
  return devices_[static_cast<std::size_t>(index)].load(std::memory_order_acquire);
}

CudaDevice& CudaAllocator::device(c10::DeviceIndex index) {
  if (CudaDevice* found = find_device(index)) return *found;
  if (index < 0 || index >= kMaxDevices)
    throw Error("device: index=" + std::to_string(index) + ", must be that of a CUDA device. Give another.");
  const std::lock_guard<std::mutex> lock(setup_mutex_);
  if (CudaDevice* found = find_device(index)) return *found;
  auto* made = new CudaDevice(native_, native_deleter_, routes_, index);
  if (set_up_history_) set_up_history_(made->history);
  for (const auto& tracker : trackers_) made->history.attach(tracker);
  const auto slot = static_cast<std::size_t>(index);
  devices_[slot].store(made, std::memory_order_release);
  devices_end_.store(std::max(devices_end_.load(), slot + 1), std::memory_order_release);
  return *made;
}

CudaDevice& CudaAllocator::device_of(const Engine& engine) noexcept {
  CudaDevice* found = nullptr;
  for_each_device([&](CudaDevice& device) {
    if (&device.engine == &engine) found = &device;
  });
  return *found;
}

}  // namespace stalloc
