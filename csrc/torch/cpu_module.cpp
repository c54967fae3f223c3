// stalloc_accel._torch_cpu: the engine as torch's allocator of host memory.
#include <pybind11/pybind11.h>

#include <utility>

#include "python/engine_class.h"
#include "python/plan_arrays.h"
#include "torch/cpu_allocator.h"
#include "torch/pair_timer.h"

namespace py = pybind11;

namespace stalloc {
namespace {

Engine& installed_engine(int /*device_index*/) {
  CpuAllocator* allocator = CpuAllocator::installed();
  if (allocator == nullptr) {
    throw Error("engine: backend=\"cpu\", our allocator is not installed. Call install() first.");
  }
  return allocator->engine();
}

// (ours, native), in ns; ours is what torch uses now.
std::pair<double, double> benchmark_pair(std::size_t size_bytes, std::int64_t num_pairs) {
  CpuAllocator* allocator = CpuAllocator::installed();
  if (allocator == nullptr) throw Error("benchmark_pair: backend=\"cpu\", our allocator is not installed. Install it.");
  return {median_pair_ns(*allocator, size_bytes, num_pairs), median_pair_ns(allocator->native(), size_bytes, num_pairs)};
}

std::pair<double, double> benchmark_threads(std::size_t size_bytes, std::int64_t num_pairs, std::int64_t num_threads) {
  CpuAllocator* allocator = CpuAllocator::installed();
  if (allocator == nullptr) throw Error("benchmark_threads: backend=\"cpu\", our allocator is not installed. Install it.");
  return {concurrent_pair_ns(*allocator, size_bytes, num_pairs, num_threads),
          concurrent_pair_ns(allocator->native(), size_bytes, num_pairs, num_threads)};
}

}  // namespace
}  // namespace stalloc

PYBIND11_MODULE(_torch_cpu, m) {
  using namespace stalloc;
  m.doc() = "The engine of stalloc-accel as torch's allocator of host memory.";
  register_errors();
  bind_engine_class(m);
  m.def("install", [] { CpuAllocator::install(); }, py::call_guard<py::gil_scoped_release>(),
        "Makes ours the allocator of torch's CPU tensors, for the rest of the process. Idempotent.");
  m.def("is_installed", [] { return CpuAllocator::installed() != nullptr; });
  m.def("engine", &installed_engine, py::arg("device_index") = 0, py::return_value_policy::reference,
        "The engine of the CPU; its index is always 0.");
  m.def("benchmark_pair", &benchmark_pair, py::arg("size_bytes"), py::arg("num_pairs"),
        py::call_guard<py::gil_scoped_release>(),
        "Median ns of an allocation and its free: (through ours, through the native allocator).");
  m.def("benchmark_threads", &benchmark_threads, py::arg("size_bytes"), py::arg("num_pairs"), py::arg("num_threads"),
        py::call_guard<py::gil_scoped_release>(),
        "Ns of a pair while so many threads make them at once: (through ours, through the native allocator).");
}
