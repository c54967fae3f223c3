#include "runtime/arena.h"

#include <algorithm>

namespace stalloc {

Arena::Place Arena::take_slot(Bytes offset, Bytes size) noexcept {
  if (plan_extent_ == nullptr) return {};
  const auto block = plan_extent_->map.take_at(offset, size);
  return block == BlockMap::kNoBlock ? Place{} : Place{plan_extent_, block};
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

std::vector<std::unique_ptr<Arena::Extent>> Arena::take_empty_extents(bool keep_plan) {
  std::vector<std::unique_ptr<Extent>> taken;
  const auto kept = std::stable_partition(extents_.begin(), extents_.end(), [&](const std::unique_ptr<Extent>& extent) {
    return extent->map.num_used() != 0 || (keep_plan && extent.get() == plan_extent_);
  });
  for (auto gone = kept; gone != extents_.end(); ++gone) {
    if (gone->get() == plan_extent_) plan_extent_ = nullptr;
    taken.push_back(std::move(*gone));
  }
  extents_.erase(kept, extents_.end());
  return taken;
}

Bytes Arena::empty_extent_bytes(bool keep_plan) const noexcept {
  Bytes bytes = 0;
  for (const auto& extent : extents_)
    if (extent->map.num_used() == 0 && !(keep_plan && extent.get() == plan_extent_)) bytes += extent->map.size();
  return bytes;
}

}  // namespace stalloc
