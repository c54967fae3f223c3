// What an allocation and its free cost in the engine alone, and how often the hot path asks for host memory. Built and run
// by engine_pair.py. Prints one object of JSON: for each scenario the median ns of a pair, and the counts that show what was
// measured.
//
//     engine_pair NUM_SLOTS [SCENARIO...]     slots, recorded, gaps_small, gaps_large, gaps_recorded, threads
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "core/slot_placement.h"
#include "runtime/engine.h"
#include "runtime/thread_timer.h"
#include "runtime/upstream.h"

// Every request for host memory in this program passes here: the C library's own is called by its other name.
extern "C" void* __libc_malloc(std::size_t size_bytes);
namespace {
std::atomic<long> num_mallocs{0};
}
extern "C" void* malloc(std::size_t size_bytes) {
  num_mallocs.fetch_add(1, std::memory_order_relaxed);
  return __libc_malloc(size_bytes);
}

namespace {

using namespace stalloc;

constexpr Bytes kSlotBytes = 4096 * kAlignment;  // more than what goes upstream where nothing foretells it
constexpr std::int64_t kNumLive = 64;  // blocks alive at once
constexpr std::int64_t kBatch = 512;
constexpr StreamHandle kStream = 1;

// Addresses without memory behind them: nothing here touches a block.
class AddressUpstream : public Upstream {
 public:
  void* allocate(Bytes size, StreamHandle) noexcept override {
    const std::uint64_t begin = next_;
    next_ += static_cast<std::uint64_t>(size);
    return reinterpret_cast<void*>(begin);
  }
  void deallocate(void*) noexcept override {}
  bool fences_allowed() const noexcept override { return false; }
  Fence record_fence(StreamHandle) noexcept override { return 0; }
  bool fence_done(Fence) noexcept override { return true; }
  void wait_fence(Fence) noexcept override {}
  bool stream_wait_fence(StreamHandle, Fence) noexcept override { return false; }
  void release_fence(Fence) noexcept override {}
  bool fill(void*, Bytes, std::uint8_t, StreamHandle) noexcept override { return false; }
  Bytes first_other(const void*, Bytes, std::uint8_t, StreamHandle) noexcept override { return kUnplaced; }

 private:
  std::uint64_t next_ = std::uint64_t{1} << 40;
};

// A step: what is asked for at each position, how long it lives, and whether the plan has a slot for it.
struct Request {
  Bytes size = 0;
  std::int64_t life = 0;  // in requests
  bool planned = true;
};
using Program = std::vector<Request>;

// One block after another, each freed kNumLive requests later.
Program steady_program(std::int64_t num_slots) {
  Program program;
  for (std::int64_t i = 0; i < num_slots; ++i) program.push_back({kAlignment * (1 + (i * 37) % 97), kNumLive, true});
  return program;
}

// Like a step of training with a loop over experts: what the backward pass needs lives until then, the rest for a few
// requests; every second request has no slot.
Program training_program(std::int64_t num_requests) {
  Program program;
  std::uint64_t state = 1;
  const auto draw = [&state](std::int64_t below) {
    state = state * 6364136223846793005ULL + 1442695040888963407ULL;
    return static_cast<std::int64_t>(state >> 33) % below;
  };
  for (std::int64_t i = 0; i < num_requests; ++i) {
    Request request;
    request.planned = draw(2) == 0;
    request.size = kAlignment * (1 + (draw(3) == 0 ? draw(8) : draw(8192)));
    const bool is_forward = 2 * i < num_requests;
    request.life = is_forward && draw(3) != 0 ? num_requests - 2 * i : 1 + draw(60);
    program.push_back(request);
  }
  return program;
}

std::shared_ptr<const Plan> make_plan(const Program& program, bool stacked) {
  const auto length = static_cast<std::int64_t>(program.size());
  auto plan = std::make_shared<Plan>();
  plan->num_roles = 1;
  plan->role_space = make_role_spaces(1, false);
  plan->num_period = 1;
  plan->window_end = length;
  plan->arena_bytes = plan->lower_bound_bytes = {2 * kNumLive * kSlotBytes};  // as much again stays free
  plan->table_begin = {0, length};
  for (std::int64_t i = 0; i < length; ++i) {
    const Request& request = program[static_cast<std::size_t>(i)];
    Slot slot;
    slot.size = request.size;
    slot.offset = (i % kNumLive) * kSlotBytes;
    slot.birth = i;
    slot.death = std::min(i + request.life, length);
    slot.kind = request.planned ? SlotKind::kTemporary : SlotKind::kUnplanned;
    slot.model.base = static_cast<double>(slot.size);
    plan->slots.push_back(slot);
    plan->table_slots.push_back(static_cast<std::int32_t>(i));
  }
  if (!stacked) {
    PlannerOptions options;
    options.deadline_s = 1;
    place_slots(*plan, options);
    plan->arena_bytes[0] *= 3;  // room for what has no slot
  }
  check_plan(*plan);
  return plan;
}

struct Measurement {
  double pair_ns = 0;  // the median over batches
  long mallocs = 0;
  std::int64_t most_live = 0;
  EngineStats stats;  // what this step added to requests, hits and fallbacks
};

// What a step does, in order: i stands for request i, ~i for the free of what it got.
std::vector<std::int64_t> events_of(const Program& program) {
  std::vector<std::vector<std::int64_t>> frees(program.size());  // before each request
  for (std::size_t i = 0; i < program.size(); ++i) {
    const std::size_t at = i + static_cast<std::size_t>(program[i].life);
    if (at < frees.size()) frees[at].push_back(static_cast<std::int64_t>(i));
  }
  std::vector<std::int64_t> events;
  for (std::size_t i = 0; i < program.size(); ++i) {
    for (const std::int64_t free : frees[i]) events.push_back(~free);
    events.push_back(static_cast<std::int64_t>(i));
  }
  return events;
}

// One step of at most `num_requests`. `extra` bytes make each request one that no slot foretells.
Measurement run_step(Engine& engine, const Program& program, std::int64_t num_requests, Bytes extra) {
  std::vector<void*> blocks(program.size(), nullptr);
  std::vector<Bytes> sizes;
  for (const Request& request : program) sizes.push_back(request.size + extra);
  const std::vector<std::int64_t> events = events_of(program);
  std::vector<double> batch_ns;
  batch_ns.reserve(static_cast<std::size_t>(num_requests / kBatch + 1));
  std::int64_t num_live = 0;
  Measurement result;
  const EngineStats before = engine.stats();
  const long mallocs_before = num_mallocs.load();
  auto event = events.begin();
  for (std::int64_t done = 0; done + kBatch <= num_requests; done += kBatch) {
    const auto begin = std::chrono::steady_clock::now();
    for (std::int64_t left = kBatch; left > 0; ++event) {
      if (*event < 0) {
        void*& block = blocks[static_cast<std::size_t>(~*event)];
        if (block == nullptr) continue;
        engine.deallocate(block);
        block = nullptr;
        --num_live;
      } else {
        void* block = engine.try_allocate(sizes[static_cast<std::size_t>(*event)], kStream);
        blocks[static_cast<std::size_t>(*event)] = block;
        num_live += block != nullptr ? 1 : 0;
        --left;
      }
    }
    const std::chrono::duration<double, std::nano> elapsed = std::chrono::steady_clock::now() - begin;
    batch_ns.push_back(elapsed.count() / static_cast<double>(kBatch));
    result.most_live = std::max(result.most_live, num_live);
  }
  for (void* block : blocks)
    if (block != nullptr) engine.deallocate(block);
  result.mallocs = num_mallocs.load() - mallocs_before;
  result.stats = engine.stats();
  result.stats.requests -= before.requests;
  result.stats.slot_hits -= before.slot_hits;
  result.stats.gap_hits -= before.gap_hits;
  const auto middle = batch_ns.begin() + static_cast<std::ptrdiff_t>(batch_ns.size() / 2);
  std::nth_element(batch_ns.begin(), middle, batch_ns.end());
  result.pair_ns = *middle;
  return result;
}

// The time a pair takes one thread while all of them make pairs at once.
double run_threads(Engine& engine, std::int64_t num_threads, std::int64_t num_pairs) {
  const auto make_pairs = [&] {
    for (std::int64_t i = 0; i < num_pairs; ++i)
      if (void* block = engine.try_allocate(kAlignment, kStream)) engine.deallocate(block);
  };
  return concurrent_ns(num_threads, [] {}, make_pairs) / static_cast<double>(num_pairs);
}

class Bench {
 public:
  Bench(int num_names, char** names) : num_names_(num_names), names_(names) {}

  bool wants(const char* name) const {
    if (num_names_ == 0) return true;
    return std::any_of(names_, names_ + num_names_, [name](const char* one) { return std::strcmp(one, name) == 0; });
  }
  void print(const char* name, const Measurement& measured) {
    std::printf("%s\"%s\": {\"pair_ns\": %.1f, \"mallocs\": %ld, \"requests\": %ld, \"slot_hits\": %ld, \"gap_hits\": %ld, "
                "\"most_live\": %ld}", separator(), name, measured.pair_ns, measured.mallocs,
                static_cast<long>(measured.stats.requests), static_cast<long>(measured.stats.slot_hits),
                static_cast<long>(measured.stats.gap_hits), static_cast<long>(measured.most_live));
  }
  void print(std::int64_t num_threads, double pair_ns, std::int64_t slot_hits) {
    std::printf("%s\"threads_%ld\": {\"pair_ns\": %.1f, \"slot_hits\": %ld}", separator(), static_cast<long>(num_threads),
                pair_ns, static_cast<long>(slot_hits));
  }

 private:
  const char* separator() { return num_printed_++ == 0 ? "" : ", "; }

  int num_names_;
  char** names_;
  int num_printed_ = 0;
};

Engine& make_engine(Upstream& upstream) {
  auto& engine = *new Engine(upstream);  // as in a process: never destroyed
  engine.start_recording(8);             // the engine meets the stream, so that the plan's arena is taken at once
  engine.note_upstream_allocation(&engine, 512, kStream);
  engine.stop_recording();
  return engine;
}

void measure_steady(Bench& bench, Upstream& upstream, std::int64_t num_slots) {
  Engine& engine = make_engine(upstream);
  const Program program = steady_program(num_slots);
  if (!engine.activate(make_plan(program, true), 0)) std::abort();
  (void)run_step(engine, program, num_slots, 0);
  engine.end_step();
  if (bench.wants("slots")) bench.print("slots", run_step(engine, program, num_slots, 0));
  engine.end_step();
  if (bench.wants("recorded")) {
    engine.start_recording(static_cast<std::size_t>(4 * num_slots));
    bench.print("recorded", run_step(engine, program, num_slots, 0));
    engine.stop_recording();
  }
  engine.end_step();
  if (bench.wants("gaps_small"))
    bench.print("gaps_small", run_step(engine, program, std::min<std::int64_t>(num_slots, 20 * kBatch), kSlotBytes));
}

// Requests of one size, so that whichever thread comes next finds the next slot.
void measure_threads(Bench& bench, Upstream& upstream, std::int64_t num_slots) {
  Engine& engine = make_engine(upstream);
  if (!engine.activate(make_plan(Program(static_cast<std::size_t>(num_slots), {kAlignment, kNumLive, true}), true), 0)) std::abort();
  for (const std::int64_t num_threads : {1, 2, 4, 8, 16}) {
    const EngineStats before = engine.stats();
    const double pair_ns = run_threads(engine, num_threads, num_slots / num_threads);
    bench.print(num_threads, pair_ns, engine.stats().slot_hits - before.slot_hits);
    engine.end_step();
  }
}

// Half of the requests find their slot, half a gap: what a pair takes is the mean of both.
void measure_training(Bench& bench, Upstream& upstream, std::int64_t num_requests) {
  Engine& engine = make_engine(upstream);
  const Program program = training_program(num_requests);
  if (!engine.activate(make_plan(program, false), 0)) std::abort();
  (void)run_step(engine, program, num_requests, 0);
  engine.end_step();
  if (bench.wants("gaps_large")) bench.print("gaps_large", run_step(engine, program, num_requests, 0));
  engine.end_step();
  if (!bench.wants("gaps_recorded")) return;
  engine.start_recording(static_cast<std::size_t>(4 * num_requests));
  bench.print("gaps_recorded", run_step(engine, program, num_requests, 0));
  engine.stop_recording();
}

}  // namespace

int main(int argc, char** argv) {
  const std::int64_t num_slots = argc > 1 ? std::atoll(argv[1]) : 100000;
  Bench bench(std::max(argc - 2, 0), argv + 2);
  AddressUpstream upstream;
  std::printf("{");
  if (bench.wants("slots") || bench.wants("recorded") || bench.wants("gaps_small"))
    measure_steady(bench, upstream, num_slots);
  if (bench.wants("threads")) measure_threads(bench, upstream, num_slots);
  if (bench.wants("gaps_large") || bench.wants("gaps_recorded"))
    measure_training(bench, upstream, std::min<std::int64_t>(num_slots, 16000));
  std::printf("}\n");
  return 0;
}
