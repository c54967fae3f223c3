// What is fuzzed. A target returns; whatever else it does is a finding.
#pragma once

#include <cstddef>
#include <cstdint>

namespace stalloc {

extern std::int64_t fuzz_events;  // what the targets did so far: calls of the engine, events of snapshots

void fuzz_snapshot(const std::uint8_t* data, std::size_t size);  // a snapshot file, unpacked
void fuzz_plan(const std::uint8_t* data, std::size_t size);      // the arrays of a plan file, then a program that it serves
void fuzz_engine(const std::uint8_t* data, std::size_t size);    // calls of the engine's interface, right and wrong

}  // namespace stalloc
