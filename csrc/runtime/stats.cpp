#include "runtime/stats.h"

namespace stalloc {

const char* fallback_name(Fallback reason) noexcept {
  switch (reason) {
    case Fallback::kUnmatched: return "unmatched";
    case Fallback::kSlotBusy: return "slot_busy";
    case Fallback::kTooLong: return "too_long";
    case Fallback::kUnfenced: return "unfenced";
    case Fallback::kUnplanned: return "unplanned";
    case Fallback::kUnknownStream: return "unknown_stream";
    case Fallback::kNoExtent: return "no_extent";
    case Fallback::kTableFull: return "table_full";
    case Fallback::kNumReasons: break;
  }
  return "none";
}

}  // namespace stalloc
