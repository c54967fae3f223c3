#include "torch/cuda_history.h"

#include <algorithm>

namespace stalloc {
namespace {

thread_local std::vector<std::string> compile_contexts;

// The names that skip_actions uses.
const char* action_name(native::TraceEntry::Action action) {
  switch (action) {
    case native::TraceEntry::ALLOC: return "alloc";
    case native::TraceEntry::FREE_REQUESTED: return "free_requested";
    case native::TraceEntry::FREE_COMPLETED: return "free_completed";
    default: return "annotate";
  }
}

}  // namespace

void push_compile_context(const std::string& context) { compile_contexts.push_back(context); }

void pop_compile_context() {
  if (!compile_contexts.empty()) compile_contexts.pop_back();
}

void CudaHistory::configure(bool enabled, native::CreateContextFn recorder, std::size_t max_entries,
                            native::RecordContext when, bool clear, const std::unordered_set<std::string>& skipped) {
  const std::lock_guard<std::mutex> lock(mutex_);
  enabled_ = enabled;
  max_entries_ = std::max(std::size_t{1}, max_entries);  // native keeps one at the least
  skipped_ = skipped;
  recorder_.store(enabled ? recorder : nullptr);
  when_.store(enabled ? when : native::RecordContext::NEVER);
  if (!enabled || clear) entries_.clear();
  if (!enabled) live_.clear();
  watching_.store(enabled_ || !trackers_.empty());
}

void CudaHistory::attach(native::AllocatorTraceTracker tracker) {
  const std::lock_guard<std::mutex> lock(mutex_);
  trackers_.push_back(std::move(tracker));
  watching_.store(true);
}

CudaHistory::Context CudaHistory::gather(native::RecordContext level) const {
  const native::CreateContextFn recorder = recorder_.load();
  if (recorder == nullptr || when_.load() < level) return nullptr;
  return recorder();
}

void CudaHistory::note_allocation(const void* ptr, Bytes requested, StreamHandle stream) {
  const Context context = gather(native::RecordContext::STATE);
  const auto address = reinterpret_cast<std::uintptr_t>(ptr);
  const bool in_trace = when_.load() >= native::RecordContext::ALLOC;
  Entry entry = make_trace_entry(Entry::ALLOC, device_, address, static_cast<std::size_t>(requested), stream,
                                 in_trace ? context : nullptr,
                                 compile_contexts.empty() ? "N/A" : compile_contexts.back(), user_metadata(native_));
  const std::lock_guard<std::mutex> lock(mutex_);
  if (enabled_) live_[address] = {context, requested};
  push(std::move(entry));
}

void CudaHistory::note_free(const void* ptr, Bytes size, StreamHandle stream) {
  Context context = gather(native::RecordContext::ALL);
  const auto address = reinterpret_cast<std::uintptr_t>(ptr);
  const std::string compiled = compile_contexts.empty() ? "N/A" : compile_contexts.back();
  const std::string metadata = user_metadata(native_);
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = live_.find(address);
  if (found != live_.end()) {
    if (context == nullptr) context = found->second.context;
    size = found->second.requested;
    live_.erase(found);
  }
  if (when_.load() < native::RecordContext::ALLOC) context = nullptr;
  // A block that waits for another stream completes later, unseen by the program: both entries are made now.
  for (const auto action : {Entry::FREE_REQUESTED, Entry::FREE_COMPLETED})
    push(make_trace_entry(action, device_, address, static_cast<std::size_t>(size), stream, context, compiled,
                          metadata));
}

void CudaHistory::note_annotation(const void* ptr, const std::string& metadata) {
  STALLOC_SINCE_2_14(
      const Context context = gather(native::RecordContext::ALLOC);
      Entry entry = make_trace_entry(Entry::ANNOTATE, device_, reinterpret_cast<std::uintptr_t>(ptr), 0, 0, context,
                                     "N/A", metadata);
      const std::lock_guard<std::mutex> lock(mutex_); push(std::move(entry));)
  (void)ptr;
  (void)metadata;
}

// The caller holds mutex_, as the native allocator holds its lock when it calls a tracker.
void CudaHistory::push(Entry entry) {
  for (const auto& tracker : trackers_) tracker(entry);
  if (!enabled_ || skipped_.count(action_name(entry.action_)) != 0) return;
  if (entries_.size() >= max_entries_) entries_.pop_front();
  entries_.push_back(std::move(entry));
}

CudaHistory::Context CudaHistory::context_of(const void* ptr) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = live_.find(reinterpret_cast<std::uintptr_t>(ptr));
  return found == live_.end() ? nullptr : found->second.context;
}

std::size_t CudaHistory::max_entries() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return max_entries_;
}

std::vector<CudaHistory::Entry> CudaHistory::entries() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return {entries_.begin(), entries_.end()};
}

}  // namespace stalloc
