#include "core/twins.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

namespace stalloc {
namespace {

constexpr Tick kTimes = 64;  // parts of the period: what dies in one of them dies at the same time

using Kind = std::tuple<Bytes, std::int32_t, double, double>;  // the size, whatever the batch

Kind kind_of(const Slot& slot) { return {slot.size, slot.model.variable, slot.model.base, slot.model.slope}; }

Tick magnitude_of(Tick ticks) {
  Tick magnitude = 0;
  for (; ticks > 1; ticks /= 2) ++magnitude;
  return magnitude;
}

// Goes over the entries of one table and role, last ones first.
class TwinSearch {
 public:
  explicit TwinSearch(Tick period) : time_(std::max<Tick>(period / kTimes, 1)) {}

  // The nearest of the entries so far that is alike; then `entry` is one of them.
  std::int32_t twin_of(const Slot& slot, std::int32_t entry) {
    const Kind kind = kind_of(slot);
    const std::int32_t until_then = replace(by_death_, {kind, slot.death / time_}, entry);
    const std::int32_t as_long = replace(by_life_, {kind, magnitude_of(slot.death - slot.birth)}, entry);
    if (until_then == kNoTwin || as_long == kNoTwin) return std::max(until_then, as_long);
    return std::min(until_then, as_long);
  }

 private:
  using Entries = std::map<std::pair<Kind, Tick>, std::int32_t>;

  static std::int32_t replace(Entries& entries, const std::pair<Kind, Tick>& key, std::int32_t entry) {
    return std::exchange(entries.try_emplace(key, kNoTwin).first->second, entry);
  }

  Tick time_;
  Entries by_death_;
  Entries by_life_;
};

}  // namespace

std::vector<std::int32_t> find_twins(const Plan& plan) {
  std::vector<std::int32_t> twins(plan.table_slots.size(), kNoTwin);
  if (std::none_of(plan.slots.begin(), plan.slots.end(), [](const Slot& slot) { return slot.kind == SlotKind::kRoom; })) return twins;
  for (std::size_t cell = 0; cell + 1 < plan.table_begin.size(); ++cell) {
    TwinSearch search(plan.window_end - plan.window_begin);
    for (auto entry = static_cast<std::size_t>(plan.table_begin[cell + 1]); entry-- > static_cast<std::size_t>(plan.table_begin[cell]);) {
      const Slot& slot = plan.slots[static_cast<std::size_t>(plan.table_slots[entry])];
      if (slot.kind != SlotKind::kUnplanned) twins[entry] = search.twin_of(slot, static_cast<std::int32_t>(entry));
    }
  }
  return twins;
}

}  // namespace stalloc
