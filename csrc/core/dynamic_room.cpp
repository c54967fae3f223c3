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
constexpr double kLargeShare = 16;  // of what is planned: no such request is mistaken for another one
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

// For how long after its foretold free a dynamic request may stay: loops that make fewer passes shift what comes later.
Tick dynamic_delay(const Period& period) noexcept { return std::max(period.num_ticks / kChunks, kMinChunk); }

// The births of the largest planned requests.
std::vector<Tick> find_landmarks(const Period& period) {
  LevelSum sum(static_cast<std::size_t>(period.num_ticks));
  for (const PeriodBlock& block : period.blocks)
    if (block.planned) sum.add(block.birth, block.death, static_cast<double>(block.size));
  const Levels levels = sum.levels();
  const double large = *std::max_element(levels.begin(), levels.end()) / kLargeShare;
  std::vector<Tick> landmarks;
  for (const PeriodBlock& block : period.blocks)
    if (block.planned && static_cast<double>(block.size) >= large) landmarks.push_back(block.birth);
  return landmarks;
}

class RoomSizer {
 public:
  RoomSizer(const std::vector<StepSample>& samples, Period& period)
      : samples_(samples), period_(period), num_ticks_(static_cast<std::size_t>(period.num_ticks)) {
    find_scales();
    find_constants();
    find_bounds();
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
    add_rooms(role, part_levels(most, small ? kSmallRoom / 8 : kLeastHandover), small ? kSmallRoom : std::numeric_limits<Bytes>::max());
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

  // Where rooms may begin and end: parts of equal length, cut at the landmarks.
  void find_bounds() {
    for (Tick tick = 0; tick < period_.num_ticks; tick += dynamic_delay(period_)) bounds_.push_back(tick);
    bounds_.insert(bounds_.end(), period_.landmarks.begin(), period_.landmarks.end());
    bounds_.push_back(period_.num_ticks);
    std::sort(bounds_.begin(), bounds_.end());
    bounds_.erase(std::unique(bounds_.begin(), bounds_.end()), bounds_.end());
  }

  // The highest level of each part and of as long a time before it, in multiples of `granule`. What was alive before a
  // landmark is known to the request, and counts no more.
  std::vector<Bytes> part_levels(const Levels& levels, Bytes granule) const {
    std::vector<Bytes> highest;
    for (std::size_t part = 0; part + 1 < bounds_.size(); ++part) {
      const auto after = std::upper_bound(period_.landmarks.begin(), period_.landmarks.end(), bounds_[part]);
      const Tick landmark = after == period_.landmarks.begin() ? 0 : after[-1];
      const Tick begin = std::max(landmark, bounds_[part] - dynamic_delay(period_));
      highest.push_back(round_up(static_cast<Bytes>(*std::max_element(levels.begin() + begin, levels.begin() + bounds_[part + 1])), granule));
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
    for (std::size_t part_index = 0; part_index <= levels.size(); ++part_index) {
      const Bytes next = part_index < levels.size() ? levels[part_index] : 0;
      while (level > next) {
        const Bytes closed = std::min(level - next, open.back().size);
        const Bytes part = std::max(most, round_up(closed / kMostParts, kAlignment));
        for (Bytes left = closed; left > 0; left -= std::min(left, part)) add_room(role, open.back().since, part_index, std::min(left, part));
        level -= closed;
        open.back().size -= closed;
        if (open.back().size == 0) open.pop_back();
      }
      if (next > level) open.push_back({part_index, next - level});
      level = next;
    }
  }

  void add_room(RoleIndex role, std::size_t since, std::size_t until, Bytes size) {
    DynamicRoom room;
    room.role = role;
    room.birth = bounds_[since];
    room.death = bounds_[until];
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
  std::vector<Tick> bounds_;                // of the parts of the period
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
  period.landmarks = find_landmarks(period);
  RoomSizer sizer(samples, period);
  for (RoleIndex role = 0; role < num_roles; ++role) sizer.size_role(role);
}

Tick dynamic_end(const Period& period, Tick death) noexcept {
  const Tick turn = death / period.num_ticks * period.num_ticks;
  const auto landmark = std::lower_bound(period.landmarks.begin(), period.landmarks.end(), death - turn);
  const Tick end = death + dynamic_delay(period);
  return landmark == period.landmarks.end() ? end : std::min(end, turn + *landmark);
}

}  // namespace stalloc
