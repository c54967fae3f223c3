// One thread of a stress program: runs operations against the engine as the torch allocators do, and looks after its
// blocks.
#pragma once

#include <cstdint>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "common/draw.h"
#include "runtime/engine.h"
#include "common/host_streams.h"
#include "common/workload.h"

namespace stalloc {

struct Counts {
  std::int64_t programs = 0;
  std::int64_t events = 0;
  std::int64_t served = 0;
  std::int64_t upstream = 0;
  std::int64_t out_of_memory = 0;
  std::int64_t controls = 0;
  std::int64_t plans = 0;
  std::int64_t refused = 0;  // plans that are too large to be made or taken

  void add(const Counts& other);
};

// Blocks that one thread allocates and another frees.
class Exchange {
 public:
  // Puts `block` in and takes another out, which may be none.
  Block swap(const Block& block, std::int64_t at) {
    const std::lock_guard<std::mutex> lock(mutex_);
    Block& place = places_[static_cast<std::size_t>(at) % kPlaces];
    const Block old = place;
    place = block;
    return old;
  }
  static constexpr std::size_t kPlaces = 16;

 private:
  std::mutex mutex_;  // guards places_
  Block places_[kPlaces];
};

class ThreadProgram {
 public:
  ThreadProgram(Engine& engine, HostStreams& upstream, Exchange& exchange, std::uint64_t seed)
      : engine_(engine), upstream_(upstream), exchange_(exchange), draw_(seed) {}

  void run(const std::vector<Operation>& operations);
  void free_all();
  const Counts& counts() const noexcept { return counts_; }

 private:
  void allocate(const Operation& operation);
  Block new_block(Bytes size, StreamHandle stream);
  void free(const Block& block);

  Engine& engine_;
  HostStreams& upstream_;
  Exchange& exchange_;
  Draw draw_;
  std::unordered_map<std::int32_t, Block> live_;
  Counts counts_;
};

}  // namespace stalloc
