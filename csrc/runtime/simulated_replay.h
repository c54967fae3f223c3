// Replays a history through a model of a caching allocator, and keeps the figures of each step.
#pragma once

#include <cstdint>
#include <vector>

#include "core/types.h"
#include "runtime/simulated_cache.h"
#include "runtime/simulated_trace.h"

namespace stalloc {

// Spans of a history: 0 lies before the first mark, 1 + k is step k, the last lies after the last mark.
struct StepFigures {
  std::vector<Bytes> allocated;       // at the start of each span but the first, so one a mark
  std::vector<Bytes> reserved;
  std::vector<Bytes> allocated_peak;  // within the span
  std::vector<Bytes> reserved_peak;
  std::vector<Bytes> rounded_peak;    // of the requests rounded to 512 bytes, whoever serves them
};

struct ReplayResult {
  StepFigures steps;
  Bytes allocated_peak = 0;
  Bytes reserved_peak = 0;
  Bytes rounded_peak = 0;
  std::int64_t flushes = 0;
  std::int64_t segments_taken = 0;
  std::int64_t died_at_event = -1;  // out of memory there; the rest was not replayed
};

// Feeds the figures of spans from peaks that are kept since the last mark.
class StepMeter {
 public:
  explicit StepMeter(const ReplayTrace& trace) : marks_(trace.step_begin) {}

  // Before event `index`. True at a mark, and then the peaks of the span that ends there are closed.
  bool at_mark(std::int64_t index) const noexcept { return next_ < marks_.size() && marks_[next_] == index; }
  void close_span(Bytes allocated, Bytes reserved) {
    close_last_span();
    figures_.allocated.push_back(allocated);
    figures_.reserved.push_back(reserved);
    ++next_;
    allocated_peak_ = allocated;
    reserved_peak_ = reserved;
    rounded_peak_ = rounded_;
  }
  void close_last_span() {
    figures_.allocated_peak.push_back(allocated_peak_);
    figures_.reserved_peak.push_back(reserved_peak_);
    figures_.rounded_peak.push_back(rounded_peak_);
  }
  void observe(Bytes allocated, Bytes reserved) noexcept {
    if (allocated > allocated_peak_) allocated_peak_ = allocated;
    if (reserved > reserved_peak_) reserved_peak_ = reserved;
  }
  void add_rounded(Bytes size) noexcept {
    rounded_ += size;
    if (rounded_ > rounded_peak_) rounded_peak_ = rounded_;
  }
  ReplayResult result() const;

 private:
  const std::vector<std::int64_t>& marks_;
  std::size_t next_ = 0;
  StepFigures figures_;
  Bytes allocated_peak_ = 0;
  Bytes reserved_peak_ = 0;
  Bytes rounded_ = 0;
  Bytes rounded_peak_ = 0;
};

// What torch hands out for a request at the least, and what we do.
inline Bytes rounded_request(Bytes size) noexcept { return size <= 0 ? kAlignment : round_up(size, kAlignment); }

ReplayResult replay_native(const ReplayTrace& trace, Bytes limit_bytes, const CachingOptions& options);
ReplayResult replay_expandable(const ReplayTrace& trace, Bytes limit_bytes, const CachingOptions& options);

}  // namespace stalloc
