#include "stress/host_program.h"

#include <atomic>
#include <algorithm>
#include <memory>
#include <string>
#include <thread>

#include "core/plan_builder.h"
#include "runtime/engine_impl.h"

namespace stalloc {
namespace {

constexpr std::int64_t kRecordedSteps = 4;
constexpr std::int64_t kMaxStreams = 4;

[[noreturn]] void fail_program(const std::string& what) {
  std::fprintf(stderr, "stress: %s\n", what.c_str());
  std::abort();
}

std::vector<StreamHandle> some_streams(Draw& draw, std::int64_t first) {
  std::vector<StreamHandle> streams;
  for (std::int64_t i = draw.between(1, kMaxStreams); i > 0; --i) streams.push_back(static_cast<StreamHandle>(first++));
  return streams;
}

class HostProgram {
 public:
  HostProgram(std::uint64_t seed, bool allow_threads)
      : draw_(seed),
        largest_(Bytes{1} << draw_.between(9, 18)),
        upstream_(draw_.chance(0.2) ? Bytes{4} << 20 : Bytes{256} << 20,
                  draw_.chance(0.3) ? static_cast<std::uint64_t>(draw_.between(3, 60)) : 0),
        engine_(upstream_) {
    engine_.set_debug(draw_.chance(0.15));
    const std::int64_t num_threads = allow_threads && draw_.chance(0.5) ? draw_.between(2, 4) : 1;
    for (std::int64_t i = 0; i < num_threads; ++i) {
      auto streams = some_streams(draw_, i * kMaxStreams);
      if (draw_.chance(0.5)) streams.push_back(0);  // shared
      for (const StreamHandle stream : streams)
        if (std::find(streams_.begin(), streams_.end(), stream) == streams_.end()) streams_.push_back(stream);
      workload_seeds_.push_back(draw_.seed());
      workload_streams_.push_back(streams);
      workloads_.emplace_back(workload_seeds_.back(), largest_, streams);
      threads_.push_back(std::make_unique<ThreadProgram>(engine_, upstream_, exchange_, draw_.seed()));
    }
    for (std::int64_t i = draw_.between(1, 2); i > 0; --i) add_plan();
  }

  Counts run() {
    for (std::size_t i = 0; i < threads_.size(); ++i) threads_[i]->run(workloads_[i].construction());
    const std::int64_t num_steps = draw_.between(4, 24);
    const double stray = draw_.chance(0.5) ? 0.0 : 0.02;
    const double calm = draw_.chance(0.5) ? 0.1 : 0.7;  // how often the controls leave the engine alone
    for (std::int64_t step = 0; step < num_steps; ++step) {
      run_step(step, stray, calm);
      engine_.end_step();
      ++counts_.controls;
      check();
    }
    end();
    for (const auto& thread : threads_) counts_.add(thread->counts());
    counts_.programs = 1;
    return counts_;
  }

 private:
  void run_step(std::int64_t step, double stray, double calm) {
    std::vector<std::vector<Operation>> work;
    for (Workload& workload : workloads_) work.push_back(workload.step(step, stray));
    if (threads_.size() == 1) {
      // In pieces, so that the controls come between any two operations.
      const auto cut = work[0].begin() + draw_.below(static_cast<std::int64_t>(work[0].size()) + 1);
      threads_[0]->run({work[0].begin(), cut});
      if (!draw_.chance(calm)) control();
      threads_[0]->run({cut, work[0].end()});
      if (!draw_.chance(calm)) control();
      return;
    }
    std::atomic<std::size_t> running{threads_.size()};
    std::vector<std::thread> workers;
    for (std::size_t i = 0; i < threads_.size(); ++i)
      workers.emplace_back([&, i] {
        threads_[i]->run(work[i]);
        running.fetch_sub(1);
      });
    while (running.load() > 0) {
      if (!draw_.chance(calm)) control();
      std::this_thread::yield();
    }
    for (std::thread& worker : workers) worker.join();
  }

  void control() {
    ++counts_.controls;
    switch (draw_.below(12)) {
      case 0: engine_.activate(plan(), draw_.below(3)); break;
      case 1: engine_.arm(plan(), draw_.below(3)); break;
      case 2: engine_.deactivate(); break;
      case 3: engine_.trim(draw_.chance(0.5)); break;
      case 4: engine_.set_serve_gaps(draw_.chance(0.8)); break;
      case 5: engine_.poll_fences(); break;
      case 6: engine_.set_arena_limit(draw_.chance(0.7) ? 0 : draw_.below(64) * largest_); break;
      case 7:
        if (draw_.chance(0.5)) engine_.end_step();
        else draw_.chance(0.5) ? engine_.begin_phase() : engine_.end_phase();
        break;
      case 8: draw_.chance(0.5) ? engine_.start_recording(static_cast<std::size_t>(draw_.below(5000))) : engine_.stop_recording(); break;
      case 9: upstream_.set_capturing(draw_.chance(0.3)); break;
      case 10: engine_.blocks(); engine_.recorded(); engine_.plan(); break;
      default: upstream_.run_stream(draw_.pick(streams_)); break;
    }
  }

  // Of this program, or, one time in three, of another one.
  void add_plan() {
    const bool is_wrong = draw_.chance(1.0 / 3);
    std::vector<Workload> workloads;
    for (std::size_t i = 0; i < workloads_.size(); ++i)
      workloads.emplace_back(is_wrong ? draw_.seed() : workload_seeds_[i], largest_, workload_streams_[i]);
    std::vector<std::vector<Operation>> steps(1);
    for (std::int64_t step = -1; step < kRecordedSteps; ++step) {
      for (Workload& workload : workloads) {
        const auto part = step < 0 ? workload.construction() : workload.step(step, 0);
        steps.back().insert(steps.back().end(), part.begin(), part.end());
      }
      if (step >= 0 && step + 1 < kRecordedSteps) steps.emplace_back();
    }
    PlannerOptions options;
    options.deadline_s = 0.002;
    Plan plan = build_plan(recorded(steps, streams_), options);
    if (draw_.chance(0.5)) plan = without_prologue(plan, options);
    check_plan(plan);
    plans_.push_back(std::make_shared<const Plan>(std::move(plan)));
    ++counts_.plans;
  }
  const std::shared_ptr<const Plan>& plan() {
    if (draw_.chance(0.02) && plans_.size() < 6) add_plan();
    return draw_.pick(plans_);
  }

  void check() const { engine_.impl_->check(); }

  void end() {
    for (const auto& thread : threads_) thread->free_all();
    upstream_.set_capturing(false);
    upstream_.stop_failing();
    for (int round = 0; round < 3; ++round) {  // fences that could not be made before are recorded in the first
      engine_.poll_fences();
      upstream_.run_all_streams();
      for (const StreamHandle stream : streams_) upstream_.run_stream(stream);
    }
    engine_.poll_fences();
    engine_.deactivate();
    engine_.trim(true);
    check();
    const EngineStats stats = engine_.stats();
    if (stats.bad_frees != 0) fail_program("bad_frees=" + std::to_string(stats.bad_frees));
    if (stats.served_bytes != 0 || stats.awaiting_bytes != 0 || stats.extent_bytes != 0)
      fail_program("memory is lost: served_bytes=" + std::to_string(stats.served_bytes) + ", awaiting_bytes=" +
                   std::to_string(stats.awaiting_bytes) + ", extent_bytes=" + std::to_string(stats.extent_bytes));
    if (upstream_.allocated_bytes() != 0)
      fail_program("the upstream is owed bytes=" + std::to_string(upstream_.allocated_bytes()));
  }

  Draw draw_;
  Bytes largest_;
  HostStreams upstream_;
  Engine engine_;
  Exchange exchange_;
  std::vector<StreamHandle> streams_;
  std::vector<std::uint64_t> workload_seeds_;
  std::vector<std::vector<StreamHandle>> workload_streams_;
  std::vector<Workload> workloads_;
  std::vector<std::unique_ptr<ThreadProgram>> threads_;
  std::vector<std::shared_ptr<const Plan>> plans_;
  Counts counts_;
};

}  // namespace

Counts run_host_program(std::uint64_t seed, bool allow_threads) { return HostProgram(seed, allow_threads).run(); }

}  // namespace stalloc
