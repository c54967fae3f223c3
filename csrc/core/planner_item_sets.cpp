#include "core/planner_item_sets.h"

namespace stalloc {

ItemLevels::ItemLevels(std::size_t num_items) : items_(num_items + 1, num_items), levels_(num_items + 1) {
  int bits = 1;
  while ((std::size_t{1} << bits) < 2 * num_items) ++bits;
  bucket_shift_ = 64 - bits;
  buckets_.assign(std::size_t{1} << bits, kNone);
  for (std::size_t slot = levels_.size(); slot-- > 0; free_ = static_cast<std::int32_t>(slot)) levels_[slot].next = free_;
  const auto slot = static_cast<std::size_t>(add_level(0));
  for (ItemIndex i = 0; i < static_cast<ItemIndex>(num_items); ++i) items_.insert(slot, i);
  levels_[slot].count = static_cast<ItemIndex>(num_items);
}

std::int32_t ItemLevels::slot_of(Units at) const noexcept {
  std::int32_t slot = buckets_[bucket_of(at)];
  while (slot != kNone && levels_[static_cast<std::size_t>(slot)].at != at) slot = levels_[static_cast<std::size_t>(slot)].next;
  return slot;
}

std::int32_t ItemLevels::add_level(Units at) {
  const std::int32_t slot = free_;
  Level& level = levels_[static_cast<std::size_t>(slot)];
  free_ = level.next;
  std::int32_t& bucket = buckets_[bucket_of(at)];
  level = {at, 0, bucket};
  bucket = slot;
  return slot;
}

void ItemLevels::move(ItemIndex i, Units from, Units to) {
  std::int32_t slot = slot_of(to);
  if (slot == kNone) slot = add_level(to);
  items_.insert(static_cast<std::size_t>(slot), i);
  ++levels_[static_cast<std::size_t>(slot)].count;
  slot = slot_of(from);
  items_.erase(static_cast<std::size_t>(slot), i);
  Level& left = levels_[static_cast<std::size_t>(slot)];
  if (--left.count > 0) return;
  std::int32_t* link = &buckets_[bucket_of(from)];
  while (*link != slot) link = &levels_[static_cast<std::size_t>(*link)].next;
  *link = left.next;
  left.next = free_;
  free_ = slot;
}

const Word* ItemLevels::find(Units level) const noexcept {
  const std::int32_t slot = slot_of(level);
  return slot == kNone ? nullptr : items_.set(static_cast<std::size_t>(slot));
}

}  // namespace stalloc
