// A training program of no meaning: steps of a few phases, each a sequence of requests, frees and uses by other streams.
#pragma once

#include <cstdint>
#include <vector>

#include "common/draw.h"
#include "core/trace.h"
#include "core/types.h"

namespace stalloc {

struct Operation {
  enum class Kind { kAllocate, kFree, kUse };
  Kind kind = Kind::kAllocate;
  std::int32_t name = 0;  // a name that lives is allocated anew before the old block is freed, as `x = f(x)` does
  Bytes size = 0;
  StreamHandle stream = 0;  // kUse: the stream that reads the block
};

class Workload {
 public:
  // Sizes up to `largest`; `streams` are the ones it may use.
  Workload(std::uint64_t seed, Bytes largest, std::vector<StreamHandle> streams);

  // What happens before the first step, and in step `step`; `stray` is the share of operations that differ from the
  // phase's own.
  std::vector<Operation> construction();
  std::vector<Operation> step(std::int64_t step, double stray);
  std::int32_t num_names() const noexcept { return num_names_; }

 private:
  struct Model {
    Operation operation;
    Bytes per_token = 0;  // size = operation.size + per_token * tokens
  };
  void add_phase();
  Operation stray_operation();

  Draw draw_;
  Bytes largest_;
  std::vector<StreamHandle> streams_;
  std::vector<std::vector<Model>> phases_;
  std::vector<std::size_t> pattern_;  // phases of the steps, repeated
  std::vector<Bytes> tokens_;         // of a step: one of these
  std::int32_t num_names_ = 0;
};

// The recording that a run of `num_steps` steps would leave.
Trace recorded(const std::vector<std::vector<Operation>>& steps, std::vector<StreamHandle> streams);

}  // namespace stalloc
