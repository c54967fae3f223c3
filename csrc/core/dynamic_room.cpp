#include "core/dynamic_room.h"

#include <algorithm>
#include <limits>
#include <unordered_set>
#include <utility>

#include "core/handover.h"
#include "core/size_kinds.h"

namespace stalloc {
namespace {

constexpr Tick kChunks = 128;  // parts of a step; rooms begin and end with them
constexpr Tick kMinChunk = 16;
// A space that streams share has its small slots apart from the others, so rooms for them are small too, and the others large.
constexpr Bytes kSmallRoom = kLeastHandover / 2;
constexpr Bytes kMostParts = 64;  // that one level is cut into: a size that is misjudged makes no millions of rooms

using Levels = std::vector<double>;  // bytes alive at each tick of the period

// Adds up what is alive in a period that repeats.
class LevelSum {
 public:
  explicit LevelSum(std::size_t num_ticks) : num_ticks_(static_cast<Tick>(num_ticks)), change_(num_ticks + 1, 0.0) {}

  void add(Tick birth, Tick death, double bytes) {
    add_span(birth, std::min(death, num_ticks_), bytes);
    if (death > num_ticks_) add_span(0, std::min(death - num_ticks_, birth), bytes);
  }
  Levels levels() const {
    Levels levels;
    double live = 0;
    for (std::size_t tick = 0; tick + 1 < change_.size(); ++tick) levels.push_back(live += change_[tick]);
    return levels;
  }

 private:
  void add_span(Tick from, Tick to, double bytes) {
    if (from >= to) return;
    change_[static_cast<std::size_t>(from)] += bytes;
    change_[static_cast<std::size_t>(to)] -= bytes;
  }

  Tick num_ticks_;
  std::vector<double> change_;
};

class RoomSizer {
 public:
  RoomSizer(const std::vector<StepSample>& samples, Period& period)
      : samples_(samples), period_(period), num_ticks_(static_cast<std::size_t>(period.num_ticks)) {
    find_scales();
    find_constants();
    for (const StepSample& sample : samples_) values_.push_back(values_of(period_, sample));
  }

  void size_role(RoleIndex role) {
    size_rooms(role, false);
    size_rooms(role, true);
  }

 private:
  void size_rooms(RoleIndex role, bool small) {
    Levels most(num_ticks_, 0.0);
    Levels least;
    for (std::size_t s = 0; s < samples_.size(); ++s) {
      const Levels levels = dynamic_levels(s, role, small);
      if (s == 0) least = levels;
      for (std::size_t tick = 0; tick < num_ticks_; ++tick) {
        most[tick] = std::max(most[tick], levels[tick]);
        least[tick] = std::min(least[tick], levels[tick]);
      }
    }
    for (std::size_t tick = 0; tick < num_ticks_; ++tick)
      most[tick] += (most[tick] - least[tick]) / static_cast<double>(samples_.size());
    add_rooms(role, chunk_levels(most, small ? kSmallRoom / 8 : kLeastHandover), small ? kSmallRoom : std::numeric_limits<Bytes>::max());
  }

  // The latest variable of the batch that was told before each tick.
  void find_scales() {
    const std::vector<bool> is_batch = batch_variables(period_);
    std::int32_t scale = kNoVariable;
    for (const PeriodBlock& block : period_.blocks) {
      if (block.model.defines && is_batch[static_cast<std::size_t>(block.model.variable)]) scale = block.model.variable;
      scales_.push_back(scale);
    }
  }

  // Sizes that every step asks for, whatever its batch: gradients of weights, for one.
  void find_constants() {
    for (std::size_t s = 0; s < samples_.size(); ++s) {
      std::unordered_set<Bytes> sizes;
      for (std::size_t i = 0; i < samples_[s].period_tick.size(); ++i) {
        const Bytes size = samples_[s].blocks[i].size();
        if (s == 0 || constants_.count(size) != 0) sizes.insert(size);
      }
      constants_ = std::move(sizes);
    }
  }

  // What the request would be at the largest batch met.
  double scaled(std::size_t s, std::size_t tick, const Block& block) const {
    const std::int32_t scale = scales_[tick];
    const auto size = static_cast<double>(block.size());
    if (scale == kNoVariable || constants_.count(block.size()) != 0) return size;
    const Bytes value = values_[s][static_cast<std::size_t>(scale)];
    return value == 0 ? size : size * static_cast<double>(period_.variable_bytes[static_cast<std::size_t>(scale)]) / static_cast<double>(value);
  }

  // Of what is dynamic, or in this step alone.
  Levels dynamic_levels(std::size_t s, RoleIndex role, bool small) const {
    const StepSample& sample = samples_[s];
    LevelSum sum(num_ticks_);
    for (std::size_t i = 0; i < sample.period_tick.size(); ++i) {
      if (sample.blocks[i].role != role) continue;
      const Tick paired = sample.period_tick[i];
      const Tick tick = paired >= 0 ? paired : std::min(sample.next_tick[i], period_.num_ticks - 1);
      if (sample.deaths[i] <= tick || (paired >= 0 && !period_.blocks[static_cast<std::size_t>(paired)].dynamic)) continue;
      const double size = scaled(s, static_cast<std::size_t>(tick), sample.blocks[i]);
      if ((size < static_cast<double>(kLeastHandover)) == small) sum.add(tick, sample.deaths[i], size);
    }
    return sum.levels();
  }

  // The highest level of each chunk and the one before it, in multiples of `granule`.
  std::vector<Bytes> chunk_levels(const Levels& levels, Bytes granule) const {
    const auto chunk = static_cast<std::size_t>(dynamic_delay(period_));
    std::vector<Bytes> highest;
    for (std::size_t first = 0; first < num_ticks_; first += chunk) {
      const auto begin = levels.begin() + static_cast<std::ptrdiff_t>(first - std::min(first, chunk));
      const auto end = levels.begin() + static_cast<std::ptrdiff_t>(std::min(first + chunk, num_ticks_));
      highest.push_back(round_up(static_cast<Bytes>(*std::max_element(begin, end)), granule));
    }
    return highest;
  }

  // One room for each rise of the level, until it falls below again, in parts of at most `most` bytes.
  void add_rooms(RoleIndex role, const std::vector<Bytes>& levels, Bytes most) {
    struct Open {
      std::size_t since;
      Bytes size;
    };
    std::vector<Open> open;
    Bytes level = 0;
    for (std::size_t chunk = 0; chunk <= levels.size(); ++chunk) {
      const Bytes next = chunk < levels.size() ? levels[chunk] : 0;
      while (level > next) {
        const Bytes closed = std::min(level - next, open.back().size);
        const Bytes part = std::max(most, round_up(closed / kMostParts, kAlignment));
        for (Bytes left = closed; left > 0; left -= std::min(left, part)) add_room(role, open.back().since, chunk, std::min(left, part));
        level -= closed;
        open.back().size -= closed;
        if (open.back().size == 0) open.pop_back();
      }
      if (next > level) open.push_back({chunk, next - level});
      level = next;
    }
  }

  void add_room(RoleIndex role, std::size_t since, std::size_t until, Bytes size) {
    const auto chunk = static_cast<std::size_t>(dynamic_delay(period_));
    DynamicRoom room;
    room.role = role;
    room.birth = static_cast<Tick>(since * chunk);
    room.death = static_cast<Tick>(std::min(until * chunk, num_ticks_));
    room.size = size;
    room.model.base = static_cast<double>(size);
    const std::int32_t scale = scales_[static_cast<std::size_t>(room.birth)];
    if (scale != kNoVariable)
      room.model = SizeModel{0, room.model.base / static_cast<double>(period_.variable_bytes[static_cast<std::size_t>(scale)]), scale, false};
    period_.rooms.push_back(room);
  }

  const std::vector<StepSample>& samples_;
  Period& period_;
  const std::size_t num_ticks_;
  std::vector<std::int32_t> scales_;        // by tick
  std::unordered_set<Bytes> constants_;
  std::vector<std::vector<Bytes>> values_;  // by sample, by variable
};

}  // namespace

std::vector<Bytes> values_of(const Period& period, const StepSample& sample) {
  std::vector<Bytes> values(period.variable_bytes.size(), 0);
  for (const PeriodBlock& asked : period.blocks)
    if (asked.model.defines)
      if (const Block* block = sample.at(static_cast<std::size_t>(asked.birth))) values[static_cast<std::size_t>(asked.model.variable)] = block->requested;
  return values;
}

void size_dynamic_rooms(const std::vector<StepSample>& samples, RoleIndex num_roles, Period& period) {
  period.rooms.clear();
  RoomSizer sizer(samples, period);
  for (RoleIndex role = 0; role < num_roles; ++role) sizer.size_role(role);
}

Tick dynamic_delay(const Period& period) noexcept { return std::max(period.num_ticks / kChunks, kMinChunk); }

}  // namespace stalloc
