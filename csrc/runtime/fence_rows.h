// Rows of fences: one on every known stream, recorded at one moment. A stream that waits for a row comes after every use, on
// any of these streams, of what was freed before that moment.
// Not thread-safe: the engine's lock guards it.
#pragma once

#include <array>
#include <cstdint>

#include "runtime/upstream.h"

namespace stalloc {

// Counts the rows of a run. A free belongs to the current epoch; the row that ends an epoch covers it and all before.
using Epoch = std::uint32_t;

inline constexpr std::size_t kMaxFencedStreams = 24;  // with more, nothing is handed over

struct FenceRow {
  Epoch epoch = 0;           // it covers the frees of this epoch and all before; 0: empty
  std::size_t num_streams = 0;  // known when it was recorded
  int num_users = 0;         // threads that record it or wait for it, without the lock
  std::array<StreamHandle, kMaxFencedStreams> streams{};
  std::array<Fence, kMaxFencedStreams> fences{};
};

class FenceRows {
 public:
  // The earliest row that covers `epoch` and all of `num_streams` streams; nullptr when there is none.
  FenceRow* find(Epoch epoch, std::size_t num_streams) noexcept {
    FenceRow* found = nullptr;
    for (FenceRow& row : rows_)
      if (row.epoch >= epoch && row.epoch != 0 && row.num_streams == num_streams && (found == nullptr || row.epoch < found->epoch))
        found = &row;
    return found;
  }
  // The row to give up for a new one: the oldest that nobody uses. A later row serves in its place.
  FenceRow* oldest_unused() noexcept {
    FenceRow* found = nullptr;
    for (FenceRow& row : rows_)
      if (row.num_users == 0 && (found == nullptr || row.epoch < found->epoch)) found = &row;
    return found;
  }

 private:
  static constexpr std::size_t kNumRows = 256;
  std::array<FenceRow, kNumRows> rows_{};
};

}  // namespace stalloc
