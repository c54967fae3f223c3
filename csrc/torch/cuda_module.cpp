// stalloc_accel._torch_cuda: one engine a device as torch's allocator of CUDA memory.
#include <pybind11/pybind11.h>

#include <utility>

#include "python/engine_class.h"
#include "python/plan_arrays.h"
#include "torch/cuda_allocator.h"
#include "torch/pair_timer.h"

namespace py = pybind11;

namespace stalloc {
namespace {

CudaAllocator& installed_allocator(const char* caller) {
  CudaAllocator* allocator = CudaAllocator::installed();
  if (allocator == nullptr)
    throw Error(std::string(caller) + ": backend=\"cuda\", our allocator is not installed. Call install() first.");
  return *allocator;
}

Engine& installed_engine(int device_index) {
  CudaAllocator& allocator = installed_allocator("engine");
  if (device_index < 0 || device_index >= CudaAllocator::kMaxDevices)
    throw Error("engine: device_index=" + std::to_string(device_index) + ", must be that of a CUDA device. Give one.");
  return allocator.device(static_cast<c10::DeviceIndex>(device_index)).engine;
}

// (ours, native), in ns; ours is what torch uses now.
std::pair<double, double> benchmark_pair(std::size_t size_bytes, std::int64_t num_pairs) {
  CudaAllocator& allocator = installed_allocator("benchmark_pair");
  return {median_pair_ns(allocator, size_bytes, num_pairs), median_pair_ns(allocator.native(), size_bytes, num_pairs)};
}

std::pair<double, double> benchmark_threads(std::size_t size_bytes, std::int64_t num_pairs, std::int64_t num_threads) {
  CudaAllocator& allocator = installed_allocator("benchmark_threads");
  return {concurrent_pair_ns(allocator, size_bytes, num_pairs, num_threads),
          concurrent_pair_ns(allocator.native(), size_bytes, num_pairs, num_threads)};
}

}  // namespace
}  // namespace stalloc

PYBIND11_MODULE(_torch_cuda, m) {
  using namespace stalloc;
  using Unlocked = py::call_guard<py::gil_scoped_release>;
  m.doc() = "The engine of stalloc-accel as torch's allocator of CUDA memory.";
  register_errors();
  bind_engine_class(m);
  m.def("install", [] { CudaAllocator::install(); }, Unlocked(),
        "Makes ours the allocator of torch's CUDA tensors, for the rest of the process. Idempotent; makes no CUDA call "
        "before torch has initialized CUDA. Raises ValueError, with nothing changed, where we have to stay off.");
  m.def("is_installed", [] { return CudaAllocator::installed() != nullptr; });
  m.def("turn_expandable_segments_on", [] {
    CudaAllocator& allocator = installed_allocator("turn_expandable_segments_on");
    return allocator.expandable().turn_on(allocator.initialized());
  }, "Sets torch's expandable_segments, now or when CUDA is initialized. Returns why not, empty where it does.");
  m.def("turn_expandable_segments_off", [] {
    installed_allocator("turn_expandable_segments_off").expandable().turn_off();
  }, "Sets them back to what the program had.");
  m.def("engine", &installed_engine, py::arg("device_index"), py::return_value_policy::reference,
        "The engine of a device.");
  m.def("largest_cached_block", [](int device_index) {
    std::size_t largest = 1;
    native::get()->cacheInfo(static_cast<c10::DeviceIndex>(device_index), &largest);
    return largest;
  }, py::arg("device_index"), "What torch tells cuDNN: the bytes of the largest free block it holds.");
  m.def("benchmark_pair", &benchmark_pair, py::arg("size_bytes"), py::arg("num_pairs"), Unlocked(),
        "Median ns of an allocation and its free: (through ours, through the native allocator).");
  m.def("benchmark_threads", &benchmark_threads, py::arg("size_bytes"), py::arg("num_pairs"), py::arg("num_threads"),
        Unlocked(), "Ns of a pair while so many threads make them at once: (through ours, through the native allocator).");
}
