// The debug mode's check of all that the engine knows, after each change.
#include <algorithm>
#include <exception>

#include "runtime/debug_memory.h"
#include "runtime/engine_impl.h"

namespace stalloc {
namespace {

void require(bool holds, const char* invariant) {
  if (!holds)
    DebugMemory::fail(std::string("the engine's books are wrong: invariant=\"") + invariant +
                      "\", must hold after each change. Report this as a bug.");
}

// What the blocks of an extent add up to.
struct Sums {
  Bytes served = 0;
  Bytes requested = 0;
  Bytes awaiting = 0;
  std::int64_t blocks = 0;

  void add(Arena::Extent& extent) {
    for (auto at = extent.map.first(); at != BlockMap::kNoBlock; at = extent.map.next(at)) {
      const Arena::Note& note = extent.notes[at];
      if (!extent.map.block(at).used) {
        require(!note.freed && !note.lost && !note.has_uses && note.fences == 0, "a free block has no streams to wait for");
        continue;
      }
      if (note.settling) continue;
      require(note.requested > 0 && note.requested <= extent.map.size_of(at), "a block holds what was asked for");
      if (note.freed) {
        require(note.fences > 0 || note.lost, "a freed block in use waits for a stream");
        awaiting += extent.map.size_of(at);
        continue;
      }
      served += extent.map.size_of(at);
      requested += note.requested;
      ++blocks;
    }
  }
};

}  // namespace

void Engine::Impl::check() const noexcept {
  Sums sums;
  Bytes extent_bytes = 0;
  std::size_t num_extents = 0;
  for (const Arena& arena : arenas) {
    for (const Arena::Extent* planned : arena.planned())
      require(std::any_of(arena.extents().begin(), arena.extents().end(),
                          [planned](const auto& extent) { return extent.get() == planned; }),
              "a plan's extent belongs to its arena");
    for (const auto& extent : arena.extents()) {
      require(std::find(extents.begin(), extents.end(), extent.get()) != extents.end(), "every extent is listed");
      require(ExtentTable::owner(reinterpret_cast<void*>(extent->base)) == &engine, "every extent is published");
      try {
        extent->map.check_invariants();
      } catch (const std::exception& broken) {
        require(false, broken.what());
      }
      sums.add(*extent);
      extent_bytes += extent->map.size();
      ++num_extents;
    }
  }
  require(num_extents == extents.size(), "a listed extent belongs to an arena");
  require(extent_bytes == stats.extent_bytes, "extent_bytes is what the extents have");
  require(sums.served == levels[0].bytes, "served_bytes is what is in use");
  require(sums.requested == stats.served_requested_bytes, "served_requested_bytes is what was asked for");
  require(sums.blocks == levels[0].blocks, "served_blocks is how many are in use");
  require(sums.awaiting == stats.awaiting_bytes, "awaiting_bytes is what waits for streams");
}

}  // namespace stalloc
