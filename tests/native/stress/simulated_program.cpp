#include "stress/simulated_program.h"

#include <memory>
#include <unordered_map>

#include "core/plan_builder.h"
#include "runtime/engine_impl.h"
#include "runtime/simulated_run.h"

namespace stalloc {
namespace {

// A workload written down as a snapshot's events; a recorded block's free completes some events after its request.
class History {
 public:
  explicit History(Draw& draw) : draw_(draw) {}

  void add(const std::vector<Operation>& operations) {
    mark_step();
    for (const Operation& operation : operations) {
      if (operation.kind == Operation::Kind::kAllocate) {
        const std::uint64_t address = next_ += std::uint64_t{1} << 42;
        push(TraceAction::kAlloc, {address, operation.size, operation.stream, false});
        request_free(operation.name);
        live_[operation.name] = {address, operation.size, operation.stream, false};
      } else if (operation.kind == Operation::Kind::kFree) {
        request_free(operation.name);
      } else if (const auto found = live_.find(operation.name); found != live_.end()) {
        found->second.is_recorded |= operation.stream != found->second.stream;
      }
      complete_some();
      if (draw_.chance(0.001)) push(TraceAction::kSegmentFree, {});
    }
  }

  // The program ends: whatever lives is freed, and all work is done.
  void free_all() {
    while (!live_.empty()) request_free(live_.begin()->first);
    for (const Live& block : waiting_) push(TraceAction::kFreeCompleted, block);
    waiting_.clear();
  }

  std::shared_ptr<const ReplayTrace> trace() {
    mark_step();
    return std::make_shared<ReplayTrace>(make_replay_trace(actions_.data(), addresses_.data(), sizes_.data(),
                                                           streams_.data(), actions_.size(), step_begin_));
  }

 private:
  struct Live {
    std::uint64_t address = 0;
    Bytes size = 0;
    StreamHandle stream = 0;
    bool is_recorded = false;
  };

  void mark_step() {
    const auto now = static_cast<std::int64_t>(actions_.size());
    if (step_begin_.empty() || step_begin_.back() < now) step_begin_.push_back(now);
  }
  void push(TraceAction action, const Live& block) {
    actions_.push_back(static_cast<std::uint8_t>(action));
    addresses_.push_back(block.address);
    sizes_.push_back(block.size);
    streams_.push_back(block.stream);
  }
  void request_free(std::int32_t name) {
    const auto found = live_.find(name);
    if (found == live_.end()) return;
    push(TraceAction::kFreeRequested, found->second);
    if (found->second.is_recorded) {
      waiting_.push_back(found->second);
    } else {
      push(TraceAction::kFreeCompleted, found->second);
    }
    live_.erase(found);
  }
  void complete_some() {
    while (!waiting_.empty() && draw_.chance(0.1)) {
      push(TraceAction::kFreeCompleted, waiting_.back());
      waiting_.pop_back();
    }
  }

  Draw& draw_;
  std::uint64_t next_ = 0;
  std::unordered_map<std::int32_t, Live> live_;
  std::vector<Live> waiting_;
  std::vector<std::uint8_t> actions_;
  std::vector<std::uint64_t> addresses_, streams_;
  std::vector<std::int64_t> sizes_, step_begin_;
};

std::shared_ptr<const Plan> plan_of(std::uint64_t seed, Bytes largest, const std::vector<StreamHandle>& streams,
                                    bool shared) {
  Workload workload(seed, largest, streams);
  std::vector<std::vector<Operation>> steps{workload.construction()};
  for (std::int64_t step = 0; step < 4; ++step) steps.push_back(workload.step(step, 0));
  PlannerOptions options;
  options.deadline_s = 0.002;
  auto plan = std::make_shared<Plan>(build_plan(recorded(steps, streams), options, shared));
  check_plan(*plan);
  return plan;
}

void control(SimulatedRun& run, Draw& draw, const std::vector<std::shared_ptr<const Plan>>& plans) {
  Engine& engine = run.engine();
  switch (draw.below(10)) {
    case 0: engine.activate(draw.pick(plans), draw.below(6)); break;
    case 1: case 2: engine.arm(draw.pick(plans), draw.below(6)); break;
    case 3: engine.deactivate(); break;
    case 4: engine.trim(draw.chance(0.5)); break;
    case 5: engine.set_serve_gaps(draw.chance(0.9)); break;
    case 6: engine.poll_fences(); break;
    case 7: run.set_faults({false, draw.chance(0.3), draw.chance(0.3)}); break;
    default: break;
  }
}

[[noreturn]] void fail_program(const std::string& what) {
  std::fprintf(stderr, "stress: %s\n", what.c_str());
  std::abort();
}

// Nothing of the program is left: no memory may be, either.
void end(SimulatedRun& run) {
  Engine& engine = run.engine();
  run.set_faults({});
  engine.poll_fences();  // records the fences that could not be made before
  run.finish_streams();
  engine.poll_fences();
  engine.deactivate();
  engine.trim(true);
  const EngineStats stats = engine.stats();
  if (stats.served_bytes != 0 || stats.awaiting_bytes != 0 || stats.extent_bytes != 0)
    fail_program("memory is lost: served_bytes=" + std::to_string(stats.served_bytes) + ", awaiting_bytes=" +
                 std::to_string(stats.awaiting_bytes) + ", extent_bytes=" + std::to_string(stats.extent_bytes));
  if (!run.upstream_offence().empty()) fail_program(run.upstream_offence());
}

}  // namespace

Counts run_simulated_program(std::uint64_t seed) {
  Draw draw(seed);
  const Bytes largest = Bytes{1} << draw.between(12, 30);
  std::vector<StreamHandle> streams;
  for (std::int64_t i = draw.between(1, 4); i > 0; --i) streams.push_back(static_cast<StreamHandle>(i * 16));
  const std::uint64_t workload_seed = draw.seed();
  Workload workload(workload_seed, largest, streams);
  History history(draw);
  history.add(workload.construction());
  const std::int64_t num_steps = draw.between(4, 24);
  const double stray = draw.chance(0.5) ? 0.0 : 0.02;
  for (std::int64_t step = 0; step < num_steps; ++step) history.add(workload.step(step, stray));
  history.free_all();
  const bool handover = draw.chance(0.5);
  Counts counts;
  std::vector<std::shared_ptr<const Plan>> plans;
  try {
    plans.push_back(plan_of(draw.chance(1.0 / 3) ? draw.seed() : workload_seed, largest, streams, handover));
  } catch (const Error&) {  // its lengths say that it would need petabytes
    ++counts.refused;
    return counts;
  }
  const auto trace = history.trace();
  const Bytes limit = draw.chance(0.3) ? largest * draw.between(4, 200) : 0;
  SimulatedRun run(trace, limit, {}, handover);
  run.engine().set_handover(handover);
  if (draw.chance(0.7)) run.engine().start_recording(1 << 16);
  run.engine().set_debug(draw.chance(0.2));
  std::int64_t at = 0;
  bool goes_on = true;
  while (goes_on && at < trace->num_events()) {
    try {
      if (draw.chance(0.5)) control(run, draw, plans);
    } catch (const Error&) {  // an arena of terabytes is refused, with nothing changed
      ++counts.refused;
    }
    ++counts.controls;
    at = std::min(at + draw.between(1, 60), trace->num_events());
    // A free that no stream delays is complete with its request: nothing comes between the two.
    const auto is_completion = [&] {
      return trace->events[static_cast<std::size_t>(at)].action == TraceAction::kFreeCompleted;
    };
    while (at < trace->num_events() && is_completion()) ++at;
    goes_on = run.advance(at);
    if (draw.chance(0.2)) run.engine().end_step();
  }
  if (!run.offence().empty()) fail_program(run.offence());
  run.engine().impl_->check();
  if (goes_on) end(run);
  const EngineStats stats = run.engine().stats();
  counts.programs = 1;
  counts.events = at;
  counts.plans = static_cast<std::int64_t>(plans.size());
  counts.served = stats.total_blocks[0] + stats.total_blocks[1];
  counts.out_of_memory = goes_on ? 0 : 1;
  return counts;
}

}  // namespace stalloc
