#include "runtime/debug_memory.h"

#include <cstdio>
#include <cstdlib>

namespace stalloc {

void DebugMemory::extent_taken(Arena::Extent& extent, StreamHandle stream) noexcept {
  extent.poisoned = upstream_.fill(reinterpret_cast<void*>(extent.base), extent.map.size(), kPoison, stream);
}

void DebugMemory::handed_out(const Arena::Place& place, StreamHandle stream) noexcept {
  if (!place.extent->poisoned) return;
  const Bytes at = upstream_.first_other(reinterpret_cast<void*>(place.address()), place.size(), kPoison, stream);
  if (at == place.size()) return;
  fail_at("a freed block was written to", place.address() + static_cast<std::uint64_t>(at),
          "nothing may write to memory after its free");
}

void DebugMemory::coming_back(const Arena::Place& place, StreamHandle stream) noexcept {
  if (!place.extent->poisoned) return;
  const Bytes requested = place.note().requested;
  const std::uint64_t end = place.address() + static_cast<std::uint64_t>(requested);
  const Bytes spare = place.size() - requested;
  const Bytes at = upstream_.first_other(reinterpret_cast<void*>(end), spare, kPoison, stream);
  if (at != spare) {
    fail_at("a block was written past its end", end + static_cast<std::uint64_t>(at),
            "the block begins at " + std::to_string(place.address()) + " and has " + std::to_string(requested) + " bytes");
  }
  // What cannot be filled now (a capture) cannot be told from damage later.
  place.extent->poisoned = upstream_.fill(reinterpret_cast<void*>(place.address()), requested, kPoison, stream);
}

void DebugMemory::fail_at(const char* what, std::uint64_t address, const std::string& rule) noexcept {
  fail(std::string(what) + ": address=" + std::to_string(address) + ", " + rule +
       ". Run without STALLOC_DEBUG and with STALLOC_DISABLE=1 to see whether the program does it without us.");
}

void DebugMemory::fail(const std::string& text) noexcept {
  std::fprintf(stderr, "stalloc: debug: %s\n", text.c_str());
  std::abort();
}

}  // namespace stalloc
