// _core.ReplayTrace, _core.replay: histories through the models of the allocators.
#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "python/bindings.h"
#include "runtime/simulated_replay.h"
#include "runtime/simulated_run.h"
#include "runtime/simulated_trace.h"

namespace py = pybind11;

namespace stalloc {

void bind_snapshot(py::module_& m);  // snapshot_bindings.cpp

namespace {

template <typename T>
using Column = py::array_t<T, py::array::c_style | py::array::forcecast>;

template <typename T>
Column<T> to_column(const std::vector<T>& values) {
  return Column<T>(static_cast<py::ssize_t>(values.size()), values.data());
}

std::shared_ptr<ReplayTrace> trace_of(const Column<std::uint8_t>& action, const Column<std::uint64_t>& address,
                     const Column<std::int64_t>& size, const Column<std::uint64_t>& stream,
                     const Column<std::int64_t>& step_begin) {
  const auto count = static_cast<std::size_t>(action.size());
  for (const py::ssize_t length : {address.size(), size.size(), stream.size()}) {
    if (static_cast<std::size_t>(length) == count) continue;
    throw Error("replay refused the trace: len(column)=" + std::to_string(length) + ", action has " +
                std::to_string(count) + ". Give one entry an event.");
  }
  std::vector<std::int64_t> steps(step_begin.data(), step_begin.data() + step_begin.size());
  const py::gil_scoped_release release;
  return std::make_shared<ReplayTrace>(
      make_replay_trace(action.data(), address.data(), size.data(), stream.data(), count, std::move(steps)));
}

CachingOptions options_of(const py::dict& given) {
  CachingOptions options;
  if (given.contains("max_split_size")) options.max_split_size = py::cast<Bytes>(given["max_split_size"]);
  if (given.contains("garbage_collection_threshold")) {
    options.garbage_collection_threshold = py::cast<double>(given["garbage_collection_threshold"]);
  }
  if (given.contains("roundup_power2_divisions")) {
    options.roundup_power2_divisions = py::cast<std::array<std::uint32_t, 16>>(given["roundup_power2_divisions"]);
  }
  return options;
}

py::dict to_dict(const ReplayResult& result) {
  py::dict out;
  out["step_allocated"] = to_column(result.steps.allocated);
  out["step_reserved"] = to_column(result.steps.reserved);
  out["span_allocated_peak"] = to_column(result.steps.allocated_peak);
  out["span_reserved_peak"] = to_column(result.steps.reserved_peak);
  out["span_rounded_peak"] = to_column(result.steps.rounded_peak);
  out["allocated_peak_bytes"] = result.allocated_peak;
  out["reserved_peak_bytes"] = result.reserved_peak;
  out["rounded_peak_bytes"] = result.rounded_peak;
  out["flushes"] = result.flushes;
  out["segments_taken"] = result.segments_taken;
  out["died_at_event"] = result.died_at_event;
  return out;
}

// Event indices of each allocation's life; num_events where it had no end.
py::dict lives_of(const ReplayTrace& trace) {
  std::vector<std::int64_t> born, freed, done;
  for (const ReplayBlock& block : trace.blocks) {
    born.push_back(block.born);
    freed.push_back(std::min(block.freed == kNever ? block.done : block.freed, trace.num_events()));
    done.push_back(std::min(block.done, trace.num_events()));
  }
  using namespace pybind11::literals;
  return py::dict("born"_a = to_column(born), "freed"_a = to_column(freed), "done"_a = to_column(done));
}

std::unique_ptr<SimulatedRun> run_of(std::shared_ptr<ReplayTrace> trace, const py::dict& given) {
  const Bytes limit = given.contains("limit_bytes") ? py::cast<Bytes>(given["limit_bytes"]) : 0;
  const bool audited = given.contains("handover_audited") && py::cast<bool>(given["handover_audited"]);
  return std::make_unique<SimulatedRun>(std::move(trace), limit, options_of(given), audited);
}

// The caller's options carry "limit_bytes" (0: none) beside those of CachingOptions.
py::dict replay(const ReplayTrace& trace, const std::string& policy, const py::dict& given) {
  const CachingOptions options = options_of(given);
  const Bytes limit = given.contains("limit_bytes") ? py::cast<Bytes>(given["limit_bytes"]) : 0;
  if (policy != "native" && policy != "expandable") {
    throw Error("replay refused the policy: policy=" + policy + ", must be native or expandable. Correct it.");
  }
  ReplayResult result;
  {
    const py::gil_scoped_release release;
    result = policy == "native" ? replay_native(trace, limit, options) : replay_expandable(trace, limit, options);
  }
  return to_dict(result);
}

}  // namespace

void bind_simulation(py::module_& m) {
  bind_snapshot(m);
  py::class_<ReplayTrace, std::shared_ptr<ReplayTrace>>(m, "ReplayTrace")
      .def(py::init(&trace_of), py::arg("action"), py::arg("address"), py::arg("size"), py::arg("stream"),
           py::arg("step_begin"))
      .def_property_readonly("num_events", &ReplayTrace::num_events)
      .def_property_readonly("step_begin", [](const ReplayTrace& trace) { return to_column(trace.step_begin); })
      .def("lives", &lives_of)
      .def_property_readonly("num_blocks", [](const ReplayTrace& trace) { return trace.blocks.size(); })
      .def_readonly("unknown_frees", &ReplayTrace::unknown_frees)
      .def_readonly("double_births", &ReplayTrace::double_births);
  py::class_<SimulatedStreams>(m, "SimulatedStreams")
      .def(py::init<bool>(), py::arg("handover_audited") = false)
      .def("advance", &SimulatedStreams::advance, py::arg("now"))
      .def("record_fence", &SimulatedStreams::record_fence, py::arg("stream"))
      .def("fence_done", &SimulatedStreams::fence_done, py::arg("fence"))
      .def("wait_on_host", &SimulatedStreams::wait_on_host, py::arg("fence"))
      .def("wait_on_stream", &SimulatedStreams::wait_on_stream, py::arg("waiting"), py::arg("fence"))
      .def("claim", &SimulatedStreams::claim, py::arg("address"), py::arg("size"), py::arg("stream"))
      .def("release", &SimulatedStreams::release, py::arg("address"), py::arg("done"), py::arg("recorded") = ~StreamHandle{0})
      .def("know", &SimulatedStreams::know, py::arg("stream"))
      .def("adopt", &SimulatedStreams::adopt, py::arg("address"), py::arg("size"), py::arg("stream"))
      .def("forget", &SimulatedStreams::forget, py::arg("address"), py::arg("size"), py::arg("stream"));
  using Unlocked = py::call_guard<py::gil_scoped_release>;
  py::class_<SimulatedRun>(m, "SimulatedRun")
      .def(py::init(&run_of), py::arg("trace"), py::arg("options"))
      .def("advance", &SimulatedRun::advance, py::arg("end"), Unlocked())
      .def("finish", [](SimulatedRun& run) { return to_dict(run.finish()); })
      .def("empty_cache", &SimulatedRun::empty_cache)
      .def("set_faults", [](SimulatedRun& run, bool drops_waits, bool refuses_fences, bool is_capturing) {
        run.set_faults({drops_waits, refuses_fences, is_capturing});
      }, py::kw_only(), py::arg("drops_waits") = false, py::arg("refuses_fences") = false, py::arg("is_capturing") = false)
      .def("use_expandable_segments", &SimulatedRun::use_expandable_segments, py::arg("value"))
      .def_property_readonly("engine", &SimulatedRun::engine, py::return_value_policy::reference_internal)
      .def_property_readonly("offence", &SimulatedRun::offence)
      .def_property_readonly("upstream_offence", &SimulatedRun::upstream_offence)
      .def("finish_streams", &SimulatedRun::finish_streams)
      .def_property_readonly("allocated_bytes", &SimulatedRun::allocated_bytes)
      .def_property_readonly("reserved_bytes", &SimulatedRun::reserved_bytes)
      .def_property_readonly("pinned_bytes", &SimulatedRun::pinned_bytes)
      .def_property_readonly("stranded_bytes", &SimulatedRun::stranded_bytes);
  m.def("replay", &replay, py::arg("trace"), py::arg("policy"), py::arg("options"));
}

}  // namespace stalloc
