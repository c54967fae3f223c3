#include "common/thread_program.h"

#include "runtime/extent_table.h"

namespace stalloc {

void Counts::add(const Counts& other) {
  programs += other.programs;
  events += other.events;
  served += other.served;
  upstream += other.upstream;
  out_of_memory += other.out_of_memory;
  controls += other.controls;
  plans += other.plans;
  refused += other.refused;
}

void ThreadProgram::run(const std::vector<Operation>& operations) {
  for (const Operation& operation : operations) {
    ++counts_.events;
    if (operation.kind == Operation::Kind::kAllocate) {
      allocate(operation);
      continue;
    }
    const auto found = live_.find(operation.name);
    if (found == live_.end()) continue;
    if (operation.kind == Operation::Kind::kUse) {
      if (operation.stream == found->second.stream) continue;  // in order with all that the stream does later
      upstream_.submit_read(operation.stream, found->second);
      engine_.record_stream(found->second.data, operation.stream);
      // An upstream block has no engine that waits for the stream: the program does.
      if (ExtentTable::owner(found->second.data) == nullptr) upstream_.run_stream(operation.stream);
      continue;
    }
    const Block block = found->second;
    live_.erase(found);
    free(draw_.chance(0.02) ? exchange_.swap(block, draw_.below(Exchange::kPlaces)) : block);
  }
}

void ThreadProgram::allocate(const Operation& operation) {
  const Block block = new_block(operation.size, operation.stream);
  const auto found = live_.find(operation.name);
  if (found != live_.end()) {
    const Block old = found->second;
    live_.erase(found);
    free(old);
  }
  if (block.data != nullptr) live_[operation.name] = block;
}

Block ThreadProgram::new_block(Bytes size, StreamHandle stream) {
  Block block{nullptr, size, draw_.seed(), stream};
  void* data = engine_.try_allocate(size, stream);
  if (data != nullptr) {
    ++counts_.served;
    if (ExtentTable::owner(data) != &engine_) fail("a served block is not the engine's", {static_cast<char*>(data), size, 0, stream});
  } else {
    data = upstream_.allocate(round_up(size, kAlignment), stream);
    if (data == nullptr && engine_.trim(true) > 0) data = upstream_.allocate(round_up(size, kAlignment), stream);
    if (data == nullptr) {
      ++counts_.out_of_memory;
      return {};
    }
    ++counts_.upstream;
    engine_.note_upstream_allocation(data, size, stream);
  }
  block.data = static_cast<char*>(data);
  fill(block);
  return block;
}

void ThreadProgram::free(const Block& block) {
  if (block.data == nullptr) return;
  verify(block, "a block was changed while it lived");
  if (Engine* owner = ExtentTable::owner(block.data)) {
    owner->deallocate(block.data);
    return;
  }
  engine_.note_upstream_free(block.data);
  upstream_.deallocate(block.data);
}

void ThreadProgram::free_all() {
  for (const auto& [name, block] : live_) free(block);
  live_.clear();
  for (std::size_t at = 0; at < Exchange::kPlaces; ++at) free(exchange_.swap({}, static_cast<std::int64_t>(at)));
}

}  // namespace stalloc
