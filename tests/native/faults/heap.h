// Counts this thread's heap allocations, and lets one of them fail.
#pragma once

#include <cstdint>

namespace stalloc {

struct Heap {
  // While it lives nothing fails and nothing is counted: what the upstream asks for is none of ours.
  class Spared {
   public:
    Spared() : allocations_(allocations), fail_at_(fail_at) { fail_at = -1; }
    ~Spared() { allocations = allocations_, fail_at = fail_at_; }

   private:
    std::int64_t allocations_, fail_at_;
  };

  static thread_local std::int64_t allocations;
  static thread_local std::int64_t fail_at;  // the allocation from now on that throws std::bad_alloc; -1: none
};

}  // namespace stalloc
