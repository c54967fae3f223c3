// The memory history (torch.cuda.memory._record_memory_history) of the blocks that we serve: entries of the trace,
// and the frames of each allocation. Native requests are in the native allocator's own history.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <mutex>
#include <unordered_map>
#include <unordered_set>

#include "core/types.h"
#include "torch/compat.h"

namespace stalloc {

class CudaHistory {
 public:
  using Context = std::shared_ptr<c10::GatheredContext>;
  using Entry = native::TraceEntry;

  CudaHistory(native::CUDAAllocator& native, c10::DeviceIndex device) : native_(native), device_(device) {}

  void configure(bool enabled, native::CreateContextFn recorder, std::size_t max_entries, native::RecordContext when,
                 bool clear, const std::unordered_set<std::string>& skipped);
  void attach(native::AllocatorTraceTracker tracker);

  // False in all but a few runs: then the calls below are to be skipped.
  bool is_watching() const noexcept { return watching_.load(std::memory_order_relaxed); }
  // Called without any lock held: gathering frames may take Python's.
  void note_allocation(const void* ptr, Bytes requested, StreamHandle stream);
  void note_free(const void* ptr, Bytes size, StreamHandle stream);  // `size` where the allocation was not seen
  void note_annotation(const void* ptr, const std::string& metadata);

  Context context_of(const void* ptr) const;
  std::size_t max_entries() const;  // of a whole trace, ours and native's together
  std::vector<Entry> entries() const;  // in order; their time is in the clock's own ticks

 private:
  Context gather(native::RecordContext level) const;
  void push(Entry entry);

  native::CUDAAllocator& native_;
  const c10::DeviceIndex device_;
  std::atomic<bool> watching_{false};
  std::atomic<native::CreateContextFn> recorder_{nullptr};
  std::atomic<native::RecordContext> when_{native::RecordContext::NEVER};

  mutable std::mutex mutex_;  // guards all below
  bool enabled_ = false;
  std::size_t max_entries_ = 0;
  std::unordered_set<std::string> skipped_;
  std::deque<Entry> entries_;
  struct Live {
    Context context;
    Bytes requested = 0;
  };
  std::unordered_map<std::uintptr_t, Live> live_;  // blocks served since the history began
  std::vector<native::AllocatorTraceTracker> trackers_;
};

// What torch.compile says about the code that runs on this thread; the native allocator keeps the same for itself.
void push_compile_context(const std::string& context);
void pop_compile_context();

}  // namespace stalloc
