// A program over host memory whose every act is chosen by bytes: what plan_target and engine_target have in common.
#pragma once

#include <memory>
#include <vector>

#include "core/plan.h"
#include "fuzz/input.h"
#include "runtime/engine.h"
#include "common/host_streams.h"

namespace stalloc {

class FuzzProgram {
 public:
  FuzzProgram();
  ~FuzzProgram();  // frees everything and checks that nothing is lost

  Engine& engine() noexcept { return engine_; }
  void allocate(Bytes size, StreamHandle stream);
  // One act chosen by `input`; `plans` may be used.
  void act(Input& input, const std::vector<std::shared_ptr<const Plan>>& plans);
  void check() const;

 private:
  struct Owned {
    Block block;
    bool is_served = false;
  };
  void free(std::size_t index);
  void use(std::size_t index, StreamHandle stream);
  void misuse(const Block& block, std::int64_t offset, bool record);
  void control(Input& input, const std::vector<std::shared_ptr<const Plan>>& plans);

  HostStreams upstream_;
  Engine engine_;
  std::vector<Owned> live_;
  std::uint64_t next_pattern_ = 1;
  bool debug_ = false;
};

}  // namespace stalloc
