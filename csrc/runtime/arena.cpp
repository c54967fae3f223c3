#include "runtime/arena.h"

#include <algorithm>

namespace stalloc {

Arena::Place Arena::take_slot(Bytes offset, Bytes size) noexcept {
  for (Extent* extent : planned_) {
    if (offset < extent->map.size()) return take_at(extent, offset, size);
    offset -= extent->map.size();
  }
  return {};
}

Arena::Place Arena::first_used(Bytes offset, Bytes size) noexcept {
  for (Extent* extent : planned_) {
    const BlockMap& map = extent->map;
    if (offset >= map.size()) {
      offset -= map.size();
      continue;
    }
    for (auto at = map.find(offset); at != BlockMap::kNoBlock && map.offset_of(at) < offset + size; at = map.next(at))
      if (map.block(at).used) return {extent, at};
    return {};
  }
  return {};
}

Arena::Place Arena::take_at(Extent* extent, Bytes offset, Bytes size) noexcept {
  const auto block = extent->map.take_at(offset, size);
  return block == BlockMap::kNoBlock ? Place{} : Place{extent, block};
}

Arena::Place Arena::take_from(Extent* extent, BlockMap::BlockIndex free_block, Bytes offset, Bytes size) noexcept {
  const auto block = extent->map.take_from(free_block, offset, size);
  return block == BlockMap::kNoBlock ? Place{} : Place{extent, block};
}

void Arena::count_planned() noexcept {
  planned_bytes_ = 0;
  for (const Extent* extent : planned_) planned_bytes_ += extent->map.size();
}

std::vector<Arena::Extent*> Arena::live_plan_extents() const {
  std::vector<Extent*> live;
  std::copy_if(planned_.begin(), planned_.end(), std::back_inserter(live),
               [](const Extent* extent) { return extent->map.num_used() != 0; });
  return live;
}

bool Arena::are_live_plan_extents(const std::vector<Extent*>& those) const noexcept {
  auto next = those.begin();
  for (const Extent* extent : planned_)
    if (extent->map.num_used() != 0 && (next == those.end() || *next++ != extent)) return false;
  return next == those.end();
}

void Arena::take_idle_plan_extents(std::vector<std::unique_ptr<Extent>>& taken) noexcept {
  const auto is_idle = [](const Extent* extent) { return extent->map.num_used() == 0; };
  for (Extent* extent : planned_) {
    if (!is_idle(extent) || extent->held_back) continue;
    const auto owner = std::find_if(extents_.begin(), extents_.end(),
                                    [extent](const std::unique_ptr<Extent>& one) { return one.get() == extent; });
    taken.push_back(std::move(*owner));
    extents_.erase(owner);
  }
  planned_.erase(std::remove_if(planned_.begin(), planned_.end(), is_idle), planned_.end());
  count_planned();
}

Arena::Place Arena::take_gap(Bytes size) noexcept {
  for (const auto& extent : extents_) {
    const auto block = extent->map.take_best_fit(size);
    if (block != BlockMap::kNoBlock) return {extent.get(), block};
  }
  return {};
}

Arena::Place Arena::find(std::uint64_t address) const noexcept {
  for (const auto& extent : extents_) {
    if (address - extent->base >= static_cast<std::uint64_t>(extent->map.size())) continue;
    return {extent.get(), extent->map.find(static_cast<Bytes>(address - extent->base))};
  }
  return {};
}

// The plan's address space stays whole: its extents go together or not at all.
bool Arena::spares(const Extent* extent, bool keep_plan) const noexcept {
  const auto stays = [](const Extent* one) { return one->map.num_used() != 0 || one->held_back; };
  if (stays(extent)) return true;
  if (std::find(planned_.begin(), planned_.end(), extent) == planned_.end()) return false;
  return keep_plan || std::any_of(planned_.begin(), planned_.end(), stays);
}

void Arena::take_empty_extents(bool keep_plan, std::vector<std::unique_ptr<Extent>>& taken) noexcept {
  const auto kept = std::stable_partition(extents_.begin(), extents_.end(), [&](const std::unique_ptr<Extent>& extent) {
    return spares(extent.get(), keep_plan);
  });
  for (auto extent = kept; extent != extents_.end(); ++extent) {
    planned_.erase(std::remove(planned_.begin(), planned_.end(), extent->get()), planned_.end());
    taken.push_back(std::move(*extent));
  }
  extents_.erase(kept, extents_.end());
  count_planned();
}

Bytes Arena::empty_extent_bytes(bool keep_plan) const noexcept {
  Bytes bytes = 0;
  for (const auto& extent : extents_)
    if (!spares(extent.get(), keep_plan)) bytes += extent->map.size();
  return bytes;
}

}  // namespace stalloc
