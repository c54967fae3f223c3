#include "torch/cuda_snapshot.h"

#include <algorithm>
#include <iterator>
#include <set>

namespace stalloc {
namespace {

native::BlockInfo block_info(const Engine::BlockView& view, const CudaHistory& history) {
  native::BlockInfo block;
  block.size = static_cast<std::size_t>(view.size);
  block.requested_size = static_cast<std::size_t>(view.requested);
  block.active = view.requested > 0;
  block.allocated = block.active && !view.awaiting_free;
  if (block.allocated) block.context_when_allocated = history.context_of(reinterpret_cast<void*>(view.address));
  return block;
}

// The served blocks of one extent, and what the native block has beyond the extent's end.
std::vector<native::BlockInfo> blocks_of(const CudaUpstream::Extent& extent, const native::BlockInfo& whole,
                                         const std::vector<Engine::BlockView>& views, const CudaHistory& history) {
  std::vector<native::BlockInfo> blocks;
  for (const auto& view : views)
    if (view.extent == extent.base) blocks.push_back(block_info(view, history));
  const auto extent_size = static_cast<std::size_t>(extent.size);
  if (whole.size > extent_size) {
    native::BlockInfo tail;
    tail.size = whole.size - extent_size;
    blocks.push_back(tail);
  }
  return blocks;
}

void recount(native::SegmentInfo& segment) {
  segment.allocated_size = segment.active_size = segment.requested_size = 0;
  for (const auto& block : segment.blocks) {
    if (block.allocated) segment.allocated_size += block.size;
    if (!block.active) continue;
    segment.active_size += block.size;
    segment.requested_size += block.requested_size;
  }
}

void split_segment(native::SegmentInfo& segment, const std::vector<CudaUpstream::Extent>& extents,
                   const std::vector<Engine::BlockView>& views, const CudaHistory& history) {
  std::vector<native::BlockInfo> blocks;
  std::uintptr_t address = segment.address;
  for (const auto& block : segment.blocks) {
    const auto extent = std::find_if(extents.begin(), extents.end(),
                                     [&](const auto& candidate) { return candidate.base == address; });
    if (extent != extents.end() && block.allocated) {
      auto parts = blocks_of(*extent, block, views, history);
      blocks.insert(blocks.end(), std::make_move_iterator(parts.begin()), std::make_move_iterator(parts.end()));
    } else {
      blocks.push_back(block);
    }
    address += block.size;
  }
  segment.blocks = std::move(blocks);
  recount(segment);
}

}  // namespace

void split_extents(native::SnapshotInfo& snapshot, const CudaUpstream& upstream, const Engine& engine,
                   const CudaHistory& history) {
  const std::vector<CudaUpstream::Extent> extents = upstream.extents();
  if (extents.empty()) return;
  const std::vector<Engine::BlockView> views = engine.blocks();
  for (auto& segment : snapshot.segments) {
    const bool holds_one = std::any_of(extents.begin(), extents.end(), [&](const auto& extent) {
      return extent.base - segment.address < segment.total_size;
    });
    if (holds_one) split_segment(segment, extents, views, history);
  }
}

void merge_traces(std::vector<native::TraceEntry>& trace, const CudaUpstream& upstream, const CudaHistory& history,
                  const std::function<std::int64_t(c10::approx_time_t)>& to_us) {
  using Entry = native::TraceEntry;
  std::set<std::pair<std::uintptr_t, std::size_t>> extents;
  for (const auto& extent : upstream.distinct_extents())
    extents.emplace(extent.base, static_cast<std::size_t>(extent.size));
  const auto is_of_extent = [&](const Entry& entry) {
    const bool of_block = entry.action_ == Entry::ALLOC || entry.action_ == Entry::FREE_REQUESTED ||
                          entry.action_ == Entry::FREE_COMPLETED;
    return of_block && extents.count({entry.addr_, entry.size_}) != 0;
  };
  trace.erase(std::remove_if(trace.begin(), trace.end(), is_of_extent), trace.end());

  std::vector<Entry> served = history.entries();
  for (auto& entry : served) entry.time_.t_ = to_us(entry.time_.approx_t_);
  std::vector<Entry> merged;
  merged.reserve(trace.size() + served.size());
  std::merge(std::make_move_iterator(trace.begin()), std::make_move_iterator(trace.end()),
             std::make_move_iterator(served.begin()), std::make_move_iterator(served.end()),
             std::back_inserter(merged),
             [](const Entry& a, const Entry& b) { return a.time_.t_ < b.time_.t_; });
  // Each history keeps its last entries; of both together the user asked for as many. Native's limit is not known, and
  // may be higher, where its history began before us.
  const std::size_t max_entries = std::max(history.max_entries(), trace.size());
  if (merged.size() > max_entries)
    merged.erase(merged.begin(), merged.end() - static_cast<std::ptrdiff_t>(max_entries));
  trace = std::move(merged);
}

}  // namespace stalloc
