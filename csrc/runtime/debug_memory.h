// The debug mode's use of memory: what is free in an extent holds kPoison in every byte, and so do the bytes of a block
// beyond what was asked for. A block whose bytes are not so when they should be was written past its end or after its
// free; then the process ends here, with a sentence, before the damage spreads.
//
// Called with the engine's lock held, and calls the upstream so: fill() and first_other() never come back to the engine.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/arena.h"
#include "runtime/upstream.h"

namespace stalloc {

class DebugMemory {
 public:
  static constexpr std::uint8_t kPoison = 0xff;  // every float that is read from it is no number

  explicit DebugMemory(Upstream& upstream) noexcept : upstream_(upstream) {}

  void extent_taken(Arena::Extent& extent, StreamHandle stream) noexcept;
  void handed_out(const Arena::Place& place, StreamHandle stream) noexcept;
  void coming_back(const Arena::Place& place, StreamHandle stream) noexcept;

  // Ends the process: "<what failed>: <name>=<value>, <rule>. <what to do>."
  [[noreturn]] static void fail(const std::string& text) noexcept;
  [[noreturn]] static void fail_at(const char* what, std::uint64_t address, const std::string& rule) noexcept;

 private:
  Upstream& upstream_;
};

}  // namespace stalloc
