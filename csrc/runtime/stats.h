// What an engine did, counted since the last reset.
#pragma once

#include <array>
#include <cstdint>

#include "core/types.h"

namespace stalloc {

// Why a request was not served from its slot. A request that found a gap is counted too, under its reason.
enum class Fallback : int {
  kUnmatched = 0,   // no position of the sequence foretells this size
  kSlotBusy,        // the slot's bytes are in use
  kTooLong,         // more than the slot holds: a longer batch than the plan was made for
  kUnfenced,        // another stream used the slot's bytes last, and could not be waited for
  kUnplanned,       // the position is known and has no slot (dynamic or ever-growing)
  kUnknownStream,   // the plan has no arena for this stream
  kNoExtent,        // the upstream had no room for the arena
  kTableFull,       // more blocks than the arena can keep account of
  kNumReasons,
};
const char* fallback_name(Fallback reason) noexcept;

struct ServedLevel {
  std::int64_t blocks = 0;
  Bytes bytes = 0;
};
// Of all served blocks, of those up to 1 MiB, and of those above it, as torch keeps its pools.
using ServedLevels = std::array<ServedLevel, 3>;

struct EngineStats {
  std::int64_t requests = 0;         // while active
  std::int64_t slot_hits = 0;        // served from the foretold slot
  std::int64_t gap_hits = 0;         // served from free space of the arena
  std::int64_t planned_requests = 0; // requests that the matcher found a placed slot for
  Bytes requested_bytes = 0;         // of `requests`
  Bytes slot_hit_bytes = 0;
  Bytes gap_hit_bytes = 0;
  std::array<std::int64_t, static_cast<std::size_t>(Fallback::kNumReasons)> fallbacks{};
  Bytes served_bytes = 0;            // live now, rounded
  Bytes awaiting_bytes = 0;          // freed, waiting for fences or lost; not part of served_bytes
  Bytes served_peak_bytes = 0;
  std::int64_t served_blocks = 0;    // live now
  Bytes served_requested_bytes = 0;  // live now, as requested
  Bytes extent_bytes = 0;
  // Served since the engine was made, by size: up to 1 MiB, and above it (torch's two pools).
  std::array<std::int64_t, 2> total_blocks{};
  std::array<Bytes, 2> total_bytes{};
  std::array<Bytes, 2> total_requested_bytes{};
  std::int64_t steps = 0;            // ended since the engine was made
  std::int64_t handover_fences = 0;  // recorded, since the engine was made, so that streams may hand memory over
  std::int64_t handover_waits = 0;   // of a stream for a row of these
  std::int64_t reuse_waits = 0;      // of a stream for others that record_stream named, to get its own bytes back at once
  std::int64_t bad_frees = 0;        // pointers into an extent that are no live block: a bug of somebody's
};

}  // namespace stalloc
