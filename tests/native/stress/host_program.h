// One stress program over host memory: threads with workloads of their own, and plans, right and wrong, that come and go.
#pragma once

#include <cstdint>

#include "common/thread_program.h"

namespace stalloc {

// Everything but the interleaving of the threads follows from the seed. Ends the process where anything is wrong.
Counts run_host_program(std::uint64_t seed, bool allow_threads);

}  // namespace stalloc
