// A short run in which one thing fails: for every k, the k-th extent or block that is asked of the upstream, the k-th
// fence, or the k-th heap allocation of a control call. The run goes on, no byte is shared and nothing is lost.
#include <cinttypes>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>

#include "faults/heap.h"
#include "common/thread_program.h"
#include "core/plan_builder.h"
#include "runtime/engine_impl.h"

namespace stalloc {
namespace {

enum class Fault { kMemory, kFence, kHeap };
const char* const kNames[] = {"memory", "fence", "heap"};

constexpr Bytes kLargest = 100'000;
constexpr std::uint64_t kWorkloads = 2;
const std::vector<StreamHandle> kStreams{0, 1, 2};

class FailingUpstream final : public HostStreams {
 public:
  FailingUpstream(Fault fault, std::int64_t fail_at) : HostStreams(Bytes{256} << 20, 0), fault_(fault), fail_at_(fail_at) {}

  void* allocate(Bytes size, StreamHandle stream) noexcept override {
    const Heap::Spared spared;
    return fails(Fault::kMemory) ? nullptr : HostStreams::allocate(size, stream);
  }
  Fence record_fence(StreamHandle stream) noexcept override {
    const Heap::Spared spared;
    return fails(Fault::kFence) ? 0 : HostStreams::record_fence(stream);
  }
  bool has_failed() const noexcept { return fail_at_ < 0; }

 private:
  bool fails(Fault fault) noexcept { return fault == fault_ && fail_at_ >= 0 && fail_at_-- == 0; }

  const Fault fault_;
  std::int64_t fail_at_;
};

class ShortRun {
 public:
  ShortRun(std::uint64_t seed, Fault fault, std::int64_t fail_at)
      : fault_(fault), fail_at_(fail_at), upstream_(fault, fail_at), engine_(upstream_), workload_(seed, kLargest, kStreams),
        thread_(engine_, upstream_, exchange_, seed) {}

  // False when there was no k-th of its kind: the run is over before.
  bool run() {
    control([&] { engine_.start_recording(1 << 14); });
    engine_.start_recording(1 << 14);
    thread_.run(workload_.construction());
    for (int i = 0; i < 4; ++i) step();
    auto plan = plan_of_recording();
    control([&] { engine_.activate(plan, 0); });
    for (int i = 0; i < 3; ++i) step();
    control([&] { engine_.begin_phase(); engine_.end_phase(); });
    for (int i = 0; i < 3; ++i) step();
    control([&] { engine_.trim(); });
    control([&] { engine_.deactivate(); });
    step();
    control([&] { engine_.trim(true); });
    control([&] { engine_.arm(plan, 0); });
    for (int i = 0; i < 3; ++i) step();
    end();
    return fault_ == Fault::kHeap ? fail_at_ < 0 : upstream_.has_failed();
  }

 private:
  // Where the heap may fail: an exception is an answer.
  template <typename Call>
  void control(Call call) {
    const std::int64_t before = Heap::allocations;
    if (fault_ == Fault::kHeap) Heap::fail_at = fail_at_;
    try {
      call();
    } catch (const std::bad_alloc&) {
    }
    Heap::fail_at = -1;
    if (fault_ == Fault::kHeap && fail_at_ >= 0) fail_at_ -= Heap::allocations - before;
    engine_.impl_->check();
  }
  void step() {
    thread_.run(workload_.step(0, 0));
    for (const StreamHandle stream : kStreams) upstream_.run_stream(stream);
    engine_.end_step();
    engine_.impl_->check();
  }
  std::shared_ptr<const Plan> plan_of_recording() {
    PlannerOptions options;
    options.deadline_s = 0;
    return std::make_shared<const Plan>(build_plan(engine_.recorded(), options));
  }
  void end() {
    thread_.free_all();
    for (int round = 0; round < 2; ++round) {
      engine_.poll_fences();
      for (const StreamHandle stream : kStreams) upstream_.run_stream(stream);
    }
    engine_.poll_fences();
    engine_.deactivate();
    engine_.trim(true);
    engine_.impl_->check();
    const EngineStats stats = engine_.stats();
    if (stats.bad_frees != 0 || stats.awaiting_bytes != 0 || stats.extent_bytes != 0 || upstream_.allocated_bytes() != 0) {
      std::fprintf(stderr, "faults: memory is lost: extents=%" PRId64 " awaiting=%" PRId64 " upstream=%" PRId64 "\n",
                   stats.extent_bytes, stats.awaiting_bytes, upstream_.allocated_bytes());
      std::abort();
    }
  }

  const Fault fault_;
  std::int64_t fail_at_;
  FailingUpstream upstream_;
  Engine engine_;
  Exchange exchange_;
  Workload workload_;
  ThreadProgram thread_;
};

}  // namespace
}  // namespace stalloc

namespace {

std::uint64_t current_seed = 0;
const char* current_fault = "";
std::int64_t current_index = 0;

void tell_fault(int) {
  std::fprintf(stderr, "faults: seed=%" PRIu64 " %s=%" PRId64 "\n", current_seed, current_fault, current_index);
  std::_Exit(1);
}

}  // namespace

//   faults SEED [all]     each of the first ones fails, later ones are sampled unless all are asked for
int main(int argc, char** argv) {
  using namespace stalloc;
  const std::uint64_t seed = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 1;
  const bool all = argc > 2;
  std::signal(SIGABRT, tell_fault);
  std::int64_t counts[3] = {};
  for (std::uint64_t i = 0; i < kWorkloads; ++i)
    for (const Fault fault : {Fault::kMemory, Fault::kFence, Fault::kHeap})
      for (std::int64_t at = 0;; at += all ? 1 : 1 + at / 16) {
        current_seed = seed + i, current_fault = kNames[static_cast<int>(fault)], current_index = at;
        if (!ShortRun(seed + i, fault, at).run()) break;
        ++counts[static_cast<int>(fault)];
      }
  std::printf("faults: memory=%" PRId64 " fence=%" PRId64 " heap=%" PRId64 "\n", counts[0], counts[1], counts[2]);
  return 0;
}
