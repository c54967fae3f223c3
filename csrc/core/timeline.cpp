#include "core/timeline.h"

#include <algorithm>

namespace stalloc {
namespace {

std::int64_t floor_div(std::int64_t a, std::int64_t b) noexcept { return a >= 0 ? a / b : -((-a + b - 1) / b); }

}  // namespace

Timeline::Timeline(const Lifetimes& lifetimes, const Period& period, RoleIndex num_roles)
    : lifetimes_(lifetimes), period_(period) {
  for (std::int64_t step = 0; step < period.base_step; ++step) follow_step(step, num_roles);
  make_room_for_extras();
}

void Timeline::follow_step(std::int64_t step, RoleIndex num_roles) {
  StepTrack track;
  const std::int64_t distance = step - period_.base_step;
  track.turn = floor_div(distance, period_.num_copies);
  track.copy = static_cast<int>(distance - track.turn * period_.num_copies);
  track.period_tick = align_step(lifetimes_, step, period_, num_roles);
  const std::size_t begin = lifetimes_.begin_of(step);
  if (step == 0) {
    while (track.num_construction < track.period_tick.size() && track.period_tick[track.num_construction] < 0)
      ++track.num_construction;
    num_construction_ = static_cast<Tick>(track.num_construction);
  }
  Tick gap = 0;
  Tick order = 0;
  for (std::size_t i = 0; i < track.period_tick.size(); ++i) {
    Tick& tick = track.period_tick[i];
    if (tick >= 0) {
      // It must also live no longer than what repeats it, else it is another block of the same size.
      const PeriodBlock& repeats = period_.blocks[static_cast<std::size_t>(tick)];
      const Block& block = lifetimes_.blocks[begin + i];
      const Tick most = (repeats.death - repeats.birth) + period_.num_ticks / 8 + 64;
      if (repeats.planned && (block.death == kNever || block.death - block.birth > most)) tick = -1;
    }
    if (tick >= gap) {
      gap = tick + 1;
      order = 0;
    }
    track.gap.push_back(tick >= 0 ? std::max(gap - 1, tick) : gap);
    track.order.push_back(tick >= 0 || i < track.num_construction ? 0 : order++);
  }
  track.gap.push_back(gap);
  track.order.push_back(order);
  tracks_.push_back(std::move(track));
}

// One gap before each period tick of a step and one behind the last.
std::size_t Timeline::gap_index(int copy, Tick gap) const noexcept {
  return static_cast<std::size_t>(copy * (period_.num_ticks + 1) + std::min(gap, period_.num_ticks));
}

// Each gap is as wide as the step with the most extras in it needs.
void Timeline::make_room_for_extras() {
  num_extras_.assign(static_cast<std::size_t>(period_.num_copies * (period_.num_ticks + 1)), 0);
  for (const StepTrack& track : tracks_)
    for (std::size_t i = track.num_construction; i < track.period_tick.size(); ++i) {
      if (track.period_tick[i] >= 0) continue;
      Tick& widest = num_extras_[gap_index(track.copy, track.gap[i])];
      widest = std::max(widest, track.order[i] + 1);
    }
  starts_.assign(1, 0);
  for (const Tick extras : num_extras_) starts_.push_back(starts_.back() + extras + 1);
}

Tick Timeline::period_tick(int copy, Tick tick) const noexcept {
  const Tick steps = copy + floor_div(tick, period_.num_ticks);
  const Tick turn = floor_div(steps, period_.num_copies);
  const std::size_t gap = gap_index(static_cast<int>(steps - turn * period_.num_copies),
                                    tick - floor_div(tick, period_.num_ticks) * period_.num_ticks);
  return turn * turn_ticks() + starts_[gap] + num_extras_[gap];
}

Tick Timeline::extra_birth(std::int64_t step, std::size_t allocation) const noexcept {
  const StepTrack& of_step = track(step);
  return of_step.turn * turn_ticks() + starts_[gap_index(of_step.copy, of_step.gap[allocation])] +
         of_step.order[allocation];
}

Tick Timeline::moment(Tick tick) const noexcept {
  if (tick == kNever || tick < num_construction_) return kNever;
  const std::int64_t step = lifetimes_.step_of(tick);
  if (tick > lifetimes_.step_begin.back()) return kNever;
  const auto within = static_cast<std::size_t>(tick) - lifetimes_.begin_of(step);
  if (step >= period_.base_step) {
    // Extras and period ticks of these steps are the period's own.
    const std::int64_t distance = step - period_.base_step;
    const auto copy = static_cast<int>(distance % period_.num_copies);
    return floor_div(distance, period_.num_copies) * turn_ticks() +
           period_tick(copy, std::min(static_cast<Tick>(within), period_.num_ticks - 1));
  }
  const StepTrack& of_step = track(step);
  if (of_step.period_tick.size() > within && of_step.period_tick[within] < 0) return extra_birth(step, within);
  return of_step.turn * turn_ticks() + period_tick(of_step.copy, of_step.gap[within]);
}

}  // namespace stalloc
