#include "torch/cuda_expandable.h"

#include <c10/cuda/CUDAFunctions.h>
#include <dlfcn.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>

#include "torch/compat.h"

namespace stalloc {
namespace {

constexpr const char* kKey = "expandable_segments";
constexpr int kVirtualMemoryManagementSupported = 102;  // CU_DEVICE_ATTRIBUTE_..., in cuda.h

// Expandable segments are shared between processes as file descriptors, taken over with pidfd_getfd. Containers may
// forbid the call; sharing, which works for other segments, would fail then.
bool can_share_descriptors() noexcept {
#if defined(SYS_pidfd_open) && defined(SYS_pidfd_getfd)
  const auto self = static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0));
  if (self < 0) return false;
  const auto copy = static_cast<int>(syscall(SYS_pidfd_getfd, self, self, 0));
  if (copy >= 0) close(copy);
  close(self);
  return copy >= 0;
#else
  return false;
#endif
}

// Asked of the driver that torch has loaded: the runtime's names for attributes lack this one.
std::string why_devices_cannot() {
  void* driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
  if (driver == nullptr) return "the driver's library is not loaded";
  using GetAttribute = int (*)(int*, int, int);
  using GetName = int (*)(char*, int, int);
  const auto get_attribute = reinterpret_cast<GetAttribute>(dlsym(driver, "cuDeviceGetAttribute"));
  const auto get_name = reinterpret_cast<GetName>(dlsym(driver, "cuDeviceGetName"));
  dlclose(driver);  // torch holds it
  if (get_attribute == nullptr || get_name == nullptr) return "the driver does not tell what its devices can";
  for (int device = 0; device < c10::cuda::device_count(); ++device) {
    int supported = 0;
    char name[256] = {};
    if (get_attribute(&supported, kVirtualMemoryManagementSupported, device) != 0 || supported == 0)
      return "device " + std::to_string(device) + " cannot map memory";
    if (get_name(name, sizeof(name) - 1, device) != 0 || std::strstr(name, " MIG ") != nullptr)
      return "device " + std::to_string(device) + " is a MIG instance";
  }
  return {};
}

std::string with_setting(const std::string& settings, const char* value) {
  return (settings.empty() ? "" : settings + ",") + kKey + ":" + value;
}

}  // namespace

std::string CudaExpandable::why_not() const {
  if (is_forbidden_) return "a memory pool is in use";
  if (allocator_settings().find(kKey) != std::string::npos) return "the program set expandable_segments itself";
  if (!can_share_descriptors()) return "this system forbids pidfd_getfd, which sharing such memory needs";
  return {};
}

std::string CudaExpandable::turn_on(bool is_initialized) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (is_on_) return {};
  std::string reason = why_not();
  if (reason.empty() && is_initialized) reason = why_devices_cannot();
  is_wanted_ = reason.empty();
  if (!is_wanted_ || !is_initialized) return reason;
  settings_before_ = allocator_settings();
  native::setAllocatorSettings(with_setting(settings_before_, "True"));
  is_on_ = true;
  was_on_.store(true);
  return {};
}

void CudaExpandable::turn_off() noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  is_wanted_ = false;
  if (!is_on_) return;
  is_on_ = false;
  try {
    if (allocator_settings() != with_setting(settings_before_, "True")) return;  // the program has decided meanwhile
    native::setAllocatorSettings(with_setting(settings_before_, "False"));
    native::setAllocatorSettings(settings_before_);  // the text that torch tells is the program's again
  } catch (const std::exception&) {
    // torch took the same text before, so this cannot be; it would go on with expandable segments.
  }
}

void CudaExpandable::on_initialized() noexcept {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!is_wanted_) return;
  }
  try {
    turn_on(true);
  } catch (const std::exception&) {
    // As if the devices could not.
  }
}

void CudaExpandable::forbid() noexcept {
  turn_off();
  const std::lock_guard<std::mutex> lock(mutex_);
  is_forbidden_ = true;
}

// Where Yama lets only ancestors look into a process, the receiver is none.
void CudaExpandable::allow_sharing() noexcept {
  if (was_on_.load()) prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
}

}  // namespace stalloc
