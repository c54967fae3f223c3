#include "fuzz/program.h"

#include "fuzz/targets.h"
#include "runtime/engine_impl.h"

namespace stalloc {
namespace {

constexpr Bytes kLimit = Bytes{8} << 20;
constexpr std::int64_t kStreams = 4;

}  // namespace

FuzzProgram::FuzzProgram() : upstream_(kLimit, 0), engine_(upstream_) {}

FuzzProgram::~FuzzProgram() {
  while (!live_.empty()) free(live_.size() - 1);
  upstream_.set_capturing(false);
  for (int round = 0; round < 2; ++round) {
    engine_.poll_fences();
    for (StreamHandle stream = 0; stream < kStreams; ++stream) upstream_.run_stream(stream);
  }
  engine_.poll_fences();
  engine_.deactivate();
  engine_.trim(true);
  check();
  const EngineStats stats = engine_.stats();
  if (stats.served_bytes != 0 || stats.awaiting_bytes != 0 || stats.extent_bytes != 0) fail("memory is lost", {});
}

void FuzzProgram::check() const { engine_.impl_->check(); }

void FuzzProgram::allocate(Bytes size, StreamHandle stream) {
  if (live_.size() > 400) return;
  void* data = engine_.try_allocate(size, stream);
  const bool is_served = data != nullptr;
  if (!is_served && size > 0 && size <= kLimit) {
    data = upstream_.allocate(round_up(size, kAlignment), stream);
    engine_.note_upstream_allocation(data, size, stream);
  }
  if (data == nullptr) return;
  live_.push_back({{static_cast<char*>(data), size, next_pattern_++, stream}, is_served});
  fill(live_.back().block);
}

void FuzzProgram::free(std::size_t index) {
  const Owned owned = live_[index];
  live_.erase(live_.begin() + static_cast<std::ptrdiff_t>(index));
  verify(owned.block, "a block was changed while it lived");
  if (owned.is_served) {
    engine_.deallocate(owned.block.data);
  } else {
    engine_.note_upstream_free(owned.block.data);
    upstream_.deallocate(owned.block.data);
  }
}

void FuzzProgram::use(std::size_t index, StreamHandle stream) {
  const Owned& owned = live_[index];
  if (stream == owned.block.stream || !owned.is_served) return;
  upstream_.submit_read(stream, owned.block);
  engine_.record_stream(owned.block.data, stream);
}

// What only a broken program does: counted or ignored, and it harms nobody's block. The debug mode ends the process.
void FuzzProgram::misuse(const Block& block, std::int64_t offset, bool record) {
  if (record) {
    engine_.record_stream(block.data + offset, 1);
  } else if (offset != 0) {
    engine_.deallocate(block.data + offset);
  }
  void* base;
  Bytes size;
  StreamHandle stream;
  if (!engine_.find_block(block.data + offset, &base, &size, &stream) && offset >= 0 && offset < block.size)
    fail("a live block is not found", block);
}

void FuzzProgram::act(Input& input, const std::vector<std::shared_ptr<const Plan>>& plans) {
  const std::uint8_t act = input.byte();
  ++fuzz_events;
  const auto any = [&] { return static_cast<std::size_t>(input.below(static_cast<std::int64_t>(live_.size()))); };
  if (act < 110) {
    allocate(act < 100 ? 1 + input.below(40'000) : input.number(), static_cast<StreamHandle>(input.byte() % kStreams));
  } else if (live_.empty() || act >= 220) {
    control(input, plans);
  } else if (act < 190) {
    free(any());
  } else if (act < 210) {
    use(any(), static_cast<StreamHandle>(input.byte() % kStreams));
  } else if (const Owned& owned = live_[any()]; owned.is_served && !debug_) {
    misuse(owned.block, input.below(owned.block.size), act < 215);
  }
}

void FuzzProgram::control(Input& input, const std::vector<std::shared_ptr<const Plan>>& plans) {
  try {
    const std::uint8_t which = input.byte() % 16;
    const auto plan = [&] { return plans[static_cast<std::size_t>(input.below(static_cast<std::int64_t>(plans.size())))]; };
    if (which < 3 && plans.empty()) return;
    switch (which) {
      case 0: engine_.activate(plan(), input.byte() % 8); break;
      case 1: engine_.arm(plan(), input.byte() % 8); break;
      case 2: engine_.set_arena_limit(input.aligned()); break;
      case 3: engine_.deactivate(); break;
      case 4: engine_.trim(false); break;
      case 5: engine_.trim(true); break;
      case 6: engine_.set_serve_gaps(input.byte() % 4 != 0); break;
      case 7: engine_.poll_fences(); break;
      case 8: upstream_.set_capturing(input.byte() % 2 != 0); break;
      case 9: engine_.start_recording(input.byte()); break;
      case 10: upstream_.run_stream(input.byte() % kStreams); break;
      case 11: engine_.reset_peaks(); engine_.blocks(); engine_.recorded(); engine_.plan(); break;
      case 12: input.byte() % 2 == 0 ? engine_.begin_phase() : engine_.end_phase(); break;
      case 13: engine_.set_handover(input.byte() % 4 != 0); break;
      case 14: engine_.set_debug(debug_ = input.byte() % 4 == 0); break;
      default: engine_.end_step(); break;
    }
  } catch (const Error&) {
    // An arena that no map can hold.
  }
}

}  // namespace stalloc
