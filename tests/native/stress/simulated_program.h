// One stress program over the model of torch's allocator: no memory behind the addresses, but a happens-before model of
// the streams that tells of every unsafe reuse.
#pragma once

#include <cstdint>

#include "common/thread_program.h"

namespace stalloc {

Counts run_simulated_program(std::uint64_t seed);

}  // namespace stalloc
