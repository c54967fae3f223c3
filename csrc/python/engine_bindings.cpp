// Plans, and an engine over host memory, for tests and tools.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "core/block_map.h"
#include "core/gap_finder.h"
#include "core/last_frees.h"
#include "core/plan_builder.h"
#include "python/bindings.h"
#include "python/engine_class.h"
#include "python/plan_arrays.h"
#include "runtime/engine.h"
#include "runtime/extent_table.h"
#include "runtime/host_upstream.h"

namespace py = pybind11;

namespace stalloc {
namespace {

py::dict build_plan_arrays(const py::dict& trace_arrays, bool include_prologue, double deadline_s, int num_threads,
                           bool shares_spaces) {
  const Trace trace = trace_from(trace_arrays);
  PlannerOptions options;
  options.deadline_s = deadline_s;
  options.num_threads = num_threads;
  Plan plan;
  {
    py::gil_scoped_release unlocked;
    plan = build_plan(trace, options, shares_spaces);
    if (!include_prologue) plan = without_prologue(plan, options);
  }
  return to_dict(plan);
}

// An engine over HostUpstream, called as the torch allocators call theirs.
class HostEngine {
 public:
  explicit HostEngine(Bytes limit_bytes) : upstream_(limit_bytes), engine_(upstream_) {}

  std::uint64_t allocate(Bytes size, StreamHandle stream) {
    if (void* served = engine_.try_allocate(size, stream)) return reinterpret_cast<std::uint64_t>(served);
    void* ptr = upstream_.allocate(round_up(size, kAlignment), stream);
    if (ptr == nullptr) throw std::bad_alloc();
    engine_.note_upstream_allocation(ptr, size, stream);
    return reinterpret_cast<std::uint64_t>(ptr);
  }
  void free(std::uint64_t address) {
    void* ptr = reinterpret_cast<void*>(address);
    if (Engine* owner = ExtentTable::owner(ptr)) {
      owner->deallocate(ptr);
      return;
    }
    engine_.note_upstream_free(ptr);
    upstream_.deallocate(ptr);
  }
  bool owns(std::uint64_t address) const { return ExtentTable::owner(reinterpret_cast<void*>(address)) == &engine_; }
  Engine& engine() { return engine_; }
  HostUpstream& upstream() { return upstream_; }

 private:
  HostUpstream upstream_;
  Engine engine_;
};

void bind_block_map(py::module_& m) {
  py::class_<BlockMap>(m, "BlockMap", py::module_local(), "An address range tiled by used and free blocks.")
      .def(py::init<Bytes, std::size_t>(), py::arg("size"), py::arg("max_blocks"))
      .def("take_at", [](BlockMap& map, Bytes offset, Bytes size) {
        return map.take_at(offset, size) != BlockMap::kNoBlock;
      })
      .def("take_best_fit", [](BlockMap& map, Bytes size) {
        const auto block = map.take_best_fit(size);
        return block == BlockMap::kNoBlock ? kUnplaced : map.offset_of(block);
      })
      .def("release", [](BlockMap& map, Bytes offset) { map.release(map.find(offset)); })
      .def("used_bytes", &BlockMap::used_bytes)
      .def("largest_free_bytes", &BlockMap::largest_free_bytes)
      .def("check_invariants", &BlockMap::check_invariants);
  py::class_<LastFrees>(m, "LastFrees", py::module_local(), "Which role freed which part of a space last.")
      .def(py::init<Bytes, RoleIndex>(), py::arg("size"), py::arg("num_roles"))
      .def("note", &LastFrees::note, py::arg("offset"), py::arg("size"), py::arg("role"), py::arg("number"))
      .def("latest_foreign", &LastFrees::latest_foreign, py::arg("offset"), py::arg("size"), py::arg("role"),
           py::arg("known") = 0);
  py::class_<GapFinder>(m, "GapFinder", py::module_local(), "Finds room that a plan leaves idle.")
      .def(py::init([](const py::dict& plan) { return std::make_unique<GapFinder>(plan_from(plan)); }), py::arg("plan"))
      .def_readonly_static("MAX_LOOKS", &GapFinder::kMaxLooks)
      .def("find", [](GapFinder& finder, BlockMap& map, RoleIndex space, Bytes begin, Bytes size, Tick now,
                      Tick until, bool sparing) -> std::optional<std::pair<Bytes, Bytes>> {
        const Gap gap = finder.find(map, space, begin, size, now, until, sparing);
        if (!gap) return std::nullopt;
        return std::make_pair(gap.offset, gap.size);
      }, py::arg("map"), py::arg("space"), py::arg("begin"), py::arg("size"), py::arg("now"), py::arg("until"), py::arg("sparing") = false,
         "(offset in the map, bytes free there for the span), or None.");
}

}  // namespace

void bind_engine(py::module_& m) {
  m.def("build_plan", &build_plan_arrays, py::arg("trace"), py::arg("include_prologue"), py::arg("deadline_s") = 1.0,
        py::arg("num_threads") = 1, py::arg("shares_spaces") = false,
        "Plan a recorded run; with the prologue for the next run, without for this one. With shares_spaces its streams may "
        "hand memory over to each other. Raises ValueError.");
  m.def("without_prologue", [](const py::dict& arrays, double deadline_s) {
    Plan plan = plan_from(arrays);
    PlannerOptions options;
    options.deadline_s = deadline_s;
    {
      py::gil_scoped_release unlocked;
      check_plan(plan);
      plan = without_prologue(plan, options);
    }
    return to_dict(plan);
  }, py::arg("plan"), py::arg("deadline_s") = 1.0,
     "The plan's period, placed anew for a run that is already under way. Raises ValueError.");
  m.def("resized", [](const py::dict& arrays, const std::vector<Bytes>& variable_bytes, double deadline_s) {
    Plan plan = plan_from(arrays);
    PlannerOptions options;
    options.deadline_s = deadline_s;
    {
      py::gil_scoped_release unlocked;
      check_plan(plan);
      plan = resized(plan, variable_bytes, options);
    }
    return to_dict(plan);
  }, py::arg("plan"), py::arg("variable_bytes"), py::arg("deadline_s") = 1.0,
     "The same plan sized for other largest values of its variables. Raises ValueError.");
  m.def("check_plan", [](const py::dict& arrays) { check_plan(plan_from(arrays)); }, py::arg("plan"),
        "Raise ValueError when the plan's arrays contradict each other or two live slots share a byte.");
  m.def("agreement", [](const py::dict& plan, std::int32_t table, const py::dict& trace, std::int64_t step) {
    return agreement(plan_from(plan), table, trace_from(trace), step);
  }, py::arg("plan"), py::arg("table"), py::arg("trace"), py::arg("step"),
     "The share of the step's requests that the plan's table foretells.");
  m.def("needed_variables", [](const py::dict& arrays, const std::vector<Bytes>& met) {
    const Plan plan = plan_from(arrays);
    if (met.size() != plan.variable_bytes.size())
      throw Error("Finding variables failed: met=" + std::to_string(met.size()) + " values, must be one for each of the plan's " +
                  std::to_string(plan.variable_bytes.size()) + " variables. Give as many.");
    return plan.needed_variables(met, std::vector<bool>(met.size(), false));
  }, py::arg("plan"), py::arg("met"),
        "What each variable must be planned for where these values were met, in bytes: those led by one that grew grow with it. "
        "Raises ValueError.");
  m.def("met_variables", [](const py::dict& plan, const py::dict& trace) {
    return met_variables(plan_from(plan), trace_from(trace));
  }, py::arg("plan"), py::arg("trace"),
     "What the variables of the plan, made from this trace, must be planned for where each batch of its steps is to fit.");
  bind_engine_class(m);
  bind_block_map(m);
  py::class_<HostEngine>(m, "HostEngine", py::module_local(), "An engine over host memory with a byte limit.")
      .def(py::init<Bytes>(), py::arg("limit_bytes"))
      .def("allocate", &HostEngine::allocate, py::arg("size"), py::arg("stream") = 0)
      .def("free", &HostEngine::free, py::arg("address"))
      .def("owns", &HostEngine::owns)
      .def("record_stream", [](HostEngine& host, std::uint64_t address, StreamHandle stream) {
        host.engine().record_stream(reinterpret_cast<void*>(address), stream);
      })
      .def("finish_stream", [](HostEngine& host, StreamHandle stream) { host.upstream().finish_stream(stream); })
      .def("set_capturing", [](HostEngine& host, bool value) { host.upstream().set_capturing(value); })
      .def("upstream_bytes", [](HostEngine& host) { return host.upstream().allocated_bytes(); })
      .def_property_readonly("engine", &HostEngine::engine, py::return_value_policy::reference_internal);
}

}  // namespace stalloc
