#include "python/engine_class.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>

#include "python/plan_arrays.h"
#include "runtime/engine.h"

namespace py = pybind11;

namespace stalloc {
namespace {

py::dict to_dict(const EngineStats& stats) {
  py::dict fallbacks;
  for (std::size_t i = 0; i < stats.fallbacks.size(); ++i)
    fallbacks[fallback_name(static_cast<Fallback>(i))] = stats.fallbacks[i];
  using namespace pybind11::literals;
  return py::dict("requests"_a = stats.requests, "slot_hits"_a = stats.slot_hits, "gap_hits"_a = stats.gap_hits,
                  "planned_requests"_a = stats.planned_requests, "requested_bytes"_a = stats.requested_bytes,
                  "slot_hit_bytes"_a = stats.slot_hit_bytes, "gap_hit_bytes"_a = stats.gap_hit_bytes,
                  "fallbacks"_a = fallbacks, "served_bytes"_a = stats.served_bytes,
                  "awaiting_bytes"_a = stats.awaiting_bytes, "served_peak_bytes"_a = stats.served_peak_bytes,
                  "served_blocks"_a = stats.served_blocks,
                  "served_requested_bytes"_a = stats.served_requested_bytes, "extent_bytes"_a = stats.extent_bytes,
                  "steps"_a = stats.steps, "bad_frees"_a = stats.bad_frees,
                  "handover_fences"_a = stats.handover_fences, "handover_waits"_a = stats.handover_waits,
                  "reuse_waits"_a = stats.reuse_waits);
}

// Checked here, so that no caller can forget it.
std::shared_ptr<const Plan> checked_plan(const py::dict& arrays) {
  auto plan = std::make_shared<Plan>(plan_from(arrays));
  py::gil_scoped_release unlocked;
  check_plan(*plan);
  return plan;
}

py::list blocks_of(const Engine& engine) {
  py::list rows;
  for (const auto& block : engine.blocks()) {
    using namespace pybind11::literals;
    rows.append(py::dict("address"_a = block.address, "size"_a = block.size, "requested"_a = block.requested,
                         "stream"_a = block.stream, "extent"_a = block.extent,
                         "extent_size"_a = block.extent_size, "awaiting_free"_a = block.awaiting_free));
  }
  return rows;
}

}  // namespace

void bind_engine_class(py::module_& m) {
  using Unlocked = py::call_guard<py::gil_scoped_release>;
  py::class_<Engine>(m, "Engine", py::module_local(), "The allocator of one device; see csrc/runtime/engine.h.")
      .def("end_step", &Engine::end_step, Unlocked(), "Mark the boundary between two steps; steps ended so far.")
      .def("begin_phase", &Engine::begin_phase, py::arg("is_certain") = false, Unlocked(),
           "What follows is no part of the step, until end_phase(). Where that is certain, longer batches do not let the plan grow.")
      .def("end_phase", &Engine::end_phase, Unlocked(),
           "What was asked for since begin_phase(), or since the boundary, was no part of the step, which goes on.")
      .def("start_recording", &Engine::start_recording, py::arg("capacity_events"), Unlocked())
      .def("stop_recording", &Engine::stop_recording, Unlocked(), "Stop and forget the recording.")
      .def("recorded", [](const Engine& engine) {
        Trace trace;
        {
          py::gil_scoped_release unlocked;
          trace = engine.recorded();
        }
        return stalloc::to_dict(trace);
      }, "A copy of the events so far, as a dict of arrays; the recording goes on.")
      .def("recording_overflowed", &Engine::recording_overflowed)
      .def("is_recording", &Engine::is_recording)
      .def("activate", [](Engine& engine, const py::dict& arrays, std::int64_t plan_step) {
        auto plan = checked_plan(arrays);
        py::gil_scoped_release unlocked;
        return engine.activate(std::move(plan), plan_step);
      }, py::arg("plan"), py::arg("plan_step"),
         "Take the plan's arenas now and serve from them; False when there is no room. Raises ValueError on a bad plan.")
      .def("arm", [](Engine& engine, const py::dict& arrays, std::int64_t plan_step) {
        auto plan = checked_plan(arrays);
        py::gil_scoped_release unlocked;
        engine.arm(std::move(plan), plan_step);
      }, py::arg("plan"), py::arg("plan_step"),
         "Like activate, but each stream's arena is taken at its first request. Raises ValueError on a bad plan.")
      .def("plan", [](const Engine& engine) -> py::object {
        const std::shared_ptr<const Plan> plan = engine.plan();
        return plan == nullptr ? py::none() : py::object(to_dict(*plan));
      }, "The plan that is served, as a dict of arrays; None without one.")
      .def("planned_variable_bytes", [](const Engine& engine) {
        const std::shared_ptr<const Plan> plan = engine.plan();
        return plan == nullptr ? std::vector<Bytes>{} : plan->variable_bytes;
      }, "The largest value of each variable that the plan is made for. It grows where a step turns out longer.")
      .def("set_arena_limit", &Engine::set_arena_limit, py::arg("bytes"), "The most a plan may grow to; 0 is no limit.")
      .def("deactivate", &Engine::deactivate, Unlocked())
      .def("set_debug", &Engine::set_debug, py::arg("value"), Unlocked(),
           "Check every change and poison what is freed; ends the process where memory was misused. Slow.")
      .def("set_serve_gaps", &Engine::set_serve_gaps, py::arg("value"), Unlocked())
      .def("set_handover", &Engine::set_handover, py::arg("value"), Unlocked(),
           "Whether streams may hand memory over where the plan shares spaces: for audited hosts only.")
      .def("follow_stream", &Engine::follow_stream, py::arg("stream"), Unlocked(),
           "A stream (its handle) that uses memory, though it may never ask for any.")
      .def("is_active", &Engine::is_active)
      .def("trim", &Engine::trim, py::arg("force") = false, Unlocked(), "Give empty extents back; bytes returned.")
      .def("trimmable_bytes", &Engine::trimmable_bytes)
      .def("poll_fences", &Engine::poll_fences, Unlocked())
      .def("stats", [](const Engine& engine) { return to_dict(engine.stats()); })
      .def("variable_bytes", &Engine::variable_bytes,
           "The largest value of each of the plan's variables met in a finished step since the plan was taken.")
      .def("reset_peaks", &Engine::reset_peaks)
      .def("blocks", &blocks_of);
}

}  // namespace stalloc
