// What an allocation and its free cost in the engine alone, with a plan of many slots, and how often the hot path asks
// for host memory. Built and run by engine_pair.py. Prints one line of JSON.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

#include "runtime/engine.h"
#include "runtime/host_upstream.h"

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

constexpr Bytes kSlotBytes = 100 * kAlignment;
constexpr std::int64_t kNumLive = 64;  // blocks alive at once
constexpr std::int64_t kBatch = 1024;
constexpr StreamHandle kStream = 1;

Bytes size_of(std::int64_t position) { return kAlignment * (1 + (position * 37) % 97); }

// A step that asks for one block after another and frees each kNumLive requests later.
std::shared_ptr<const Plan> make_plan(std::int64_t num_slots) {
  auto plan = std::make_shared<Plan>();
  plan->num_roles = 1;
  plan->role_space = make_role_spaces(1, false);
  plan->num_period = 1;
  plan->window_end = num_slots;
  plan->arena_bytes = plan->lower_bound_bytes = {2 * kNumLive * kSlotBytes};  // as much again stays free
  plan->table_begin = {0, num_slots};
  for (std::int64_t i = 0; i < num_slots; ++i) {
    Slot slot;
    slot.size = size_of(i);
    slot.offset = (i % kNumLive) * kSlotBytes;
    slot.birth = i;
    slot.death = std::min(i + kNumLive, num_slots);
    slot.kind = SlotKind::kTemporary;
    slot.model.base = static_cast<double>(slot.size);
    plan->slots.push_back(slot);
    plan->table_slots.push_back(static_cast<std::int32_t>(i));
  }
  check_plan(*plan);
  return plan;
}

struct Measurement {
  double pair_ns = 0;  // the median over batches
  long mallocs = 0;
};

// One step: request, and the free of what was asked for kNumLive requests before. `extra` bytes make each request one that
// no slot foretells.
Measurement run_step(Engine& engine, std::int64_t num_requests, Bytes extra) {
  std::vector<void*> live(kNumLive, nullptr);
  std::vector<double> batch_ns;
  batch_ns.reserve(static_cast<std::size_t>(num_requests / kBatch + 1));
  const long before = num_mallocs.load();
  for (std::int64_t done = 0; done + kBatch <= num_requests; done += kBatch) {
    const auto begin = std::chrono::steady_clock::now();
    for (std::int64_t i = done; i < done + kBatch; ++i) {
      void*& place = live[static_cast<std::size_t>(i % kNumLive)];
      if (place != nullptr) engine.deallocate(place);
      place = engine.try_allocate(size_of(i) + extra, kStream);
    }
    const std::chrono::duration<double, std::nano> elapsed = std::chrono::steady_clock::now() - begin;
    batch_ns.push_back(elapsed.count() / static_cast<double>(kBatch));
  }
  for (void* block : live)
    if (block != nullptr) engine.deallocate(block);
  Measurement result;
  result.mallocs = num_mallocs.load() - before;
  const auto middle = batch_ns.begin() + static_cast<std::ptrdiff_t>(batch_ns.size() / 2);
  std::nth_element(batch_ns.begin(), middle, batch_ns.end());
  result.pair_ns = *middle;
  return result;
}

}  // namespace

int main(int argc, char** argv) {
  const std::int64_t num_slots = argc > 1 ? std::atoll(argv[1]) : 100000;
  HostUpstream host(Bytes{1} << 30);
  auto& engine = *new Engine(host);  // as in a process: never destroyed
  engine.start_recording(8);         // the engine meets the stream, so that the plan's arena is taken at once
  engine.note_upstream_allocation(&host, 512, kStream);
  engine.stop_recording();
  if (!engine.activate(make_plan(num_slots), 0)) return 1;
  (void)run_step(engine, num_slots, 0);

  engine.end_step();
  const EngineStats before = engine.stats();
  const Measurement slots = run_step(engine, num_slots, 0);
  const EngineStats after_slots = engine.stats();

  engine.end_step();
  engine.start_recording(static_cast<std::size_t>(4 * num_slots));
  const Measurement recorded = run_step(engine, num_slots, 0);
  engine.stop_recording();

  engine.end_step();
  const EngineStats before_gaps = engine.stats();
  const Measurement gaps = run_step(engine, std::min<std::int64_t>(num_slots, 20 * kBatch), 100 * kAlignment);
  const EngineStats after_gaps = engine.stats();

  std::printf("{\"slots\": %ld, \"requests\": %ld, \"slot_hits\": %ld, \"pair_ns\": %.1f, \"mallocs\": %ld, "
              "\"recorded_pair_ns\": %.1f, \"recorded_mallocs\": %ld, "
              "\"gap_requests\": %ld, \"gap_hits\": %ld, \"gap_pair_ns\": %.1f, \"gap_mallocs\": %ld}\n",
              static_cast<long>(num_slots), static_cast<long>(after_slots.requests - before.requests),
              static_cast<long>(after_slots.slot_hits - before.slot_hits), slots.pair_ns, slots.mallocs, recorded.pair_ns,
              recorded.mallocs, static_cast<long>(after_gaps.requests - before_gaps.requests),
              static_cast<long>(after_gaps.gap_hits - before_gaps.gap_hits), gaps.pair_ns, gaps.mallocs);
  return 0;
}
