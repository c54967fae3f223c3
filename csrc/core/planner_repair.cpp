#include "core/planner_repair.h"

#include <algorithm>

namespace stalloc {
namespace {

constexpr double kNoise = 0.1;           // of a cost; breaks ties and cycles
constexpr int kTournament = 3;           // unplaced items compared to pick one
constexpr int kMovesPerClockCheck = 16;
constexpr std::size_t kSortPerScan = 8;  // sorting one found place costs about as much as scanning this many

std::vector<Place> places_of(const Problem& problem, const Offsets& offsets) {
  std::vector<Place> places;
  places.reserve(offsets.size());
  for (ItemIndex i = 0; i < problem.num_items(); ++i) {
    const Units offset = offsets[static_cast<std::size_t>(i)];
    const Item& item = problem.item(i);
    if (offset != kUnplaced) places.push_back({offset, offset + item.size, item.lower, item.upper, i});
  }
  return places;
}

Offsets cut_at(const Problem& problem, Offsets offsets, Units capacity) {
  for (ItemIndex i = 0; i < problem.num_movable; ++i) {
    Units& offset = offsets[static_cast<std::size_t>(i)];
    if (offset != kUnplaced && offset + problem.item(i).size > capacity) offset = kUnplaced;
  }
  return offsets;
}

}  // namespace

Repair::Repair(const Problem& problem, const Timeline& timeline, Offsets offsets, Units capacity, std::uint64_t seed)
    : problem_(problem), timeline_(timeline), offsets_(cut_at(problem, std::move(offsets), capacity)),
      capacity_(capacity), random_(seed), pushes_(problem.items.size(), 0),
      by_begin_(PlaceOrder::kByBegin, places_of(problem, offsets_)),
      by_end_(PlaceOrder::kByEnd, places_of(problem, offsets_)), unplaced_at_(problem.items.size(), 0) {
  double total = 0;
  area_.reserve(problem.items.size());
  for (const Item& item : problem.items) {
    area_.push_back(static_cast<double>(item.size) * static_cast<double>(item.upper - item.lower));
    total += area_.back();
  }
  for (double& area : area_) area *= static_cast<double>(area_.size()) / total;
  for (ItemIndex i = 0; i < problem.num_movable; ++i) {
    if (offsets_[static_cast<std::size_t>(i)] != kUnplaced) continue;
    unplaced_at_[static_cast<std::size_t>(i)] = static_cast<ItemIndex>(unplaced_.size());
    unplaced_.push_back(i);
    unplaced_area_ += area_[static_cast<std::size_t>(i)];
  }
}

bool Repair::run(const RepairEffort& effort, const Deadline& deadline) {
  double best_area = unplaced_area_;
  int moves_since_best = 0, restores = 0;
  while (!unplaced_.empty()) {
    const bool out_of_time = num_moves_ % kMovesPerClockCheck == 0 && deadline.is_over();
    if (out_of_time || moves_since_best >= effort.patience) {
      restore();
      moves_since_best = 0;
      if (out_of_time || ++restores > effort.num_restores) return false;
    }
    ++num_moves_;
    ++moves_since_best;
    move(pick_unplaced());
    // Sums of doubles drift; only a real difference counts.
    if (unplaced_.empty() || unplaced_area_ < best_area * (1 - 1e-9)) {
      best_area = unplaced_area_;
      moves_since_best = 0;
      undo_.clear();
    }
  }
  return true;
}

ItemIndex Repair::pick_unplaced() {
  ItemIndex picked = unplaced_[random_.below(unplaced_.size())];
  for (int k = 1; k < kTournament; ++k) {
    const ItemIndex other = unplaced_[random_.below(unplaced_.size())];
    if (cost_of(other) > cost_of(picked)) picked = other;
  }
  return picked;
}

Place Repair::place_of(ItemIndex i) const {
  const Units offset = offsets_[static_cast<std::size_t>(i)];
  const Item& item = problem_.item(i);
  return {offset, offset + item.size, item.lower, item.upper, i};
}

void Repair::collect_in_the_way(ItemIndex i) {
  const Item& item = problem_.item(i);
  way_by_begin_.clear();
  way_by_end_.clear();
  if (timeline_.cost(item.lower, item.upper) * kSortPerScan > problem_.items.size()) {
    by_begin_.collect(item.lower, item.upper, way_by_begin_);
    by_end_.collect(item.lower, item.upper, way_by_end_);
    return;
  }
  timeline_.visit(item.lower, item.upper, [this](ItemIndex other) {
    if (offsets_[static_cast<std::size_t>(other)] != kUnplaced) way_by_begin_.push_back(place_of(other));
  });
  way_by_end_ = way_by_begin_;
  SortedPlaces::sort(PlaceOrder::kByBegin, way_by_begin_);
  SortedPlaces::sort(PlaceOrder::kByEnd, way_by_end_);
}

// Slides a window of the item's size over the addresses and keeps the sum of the costs of those inside. It
// changes only where one ends or comes in, so these are all the offsets worth a look.
Repair::Target Repair::find_target(ItemIndex i) {
  collect_in_the_way(i);
  const Units size = problem_.item(i).size;
  Target best;
  double cost = 0;
  int num_inside = 0, num_fixed_inside = 0;
  std::size_t entering = 0, leaving = 0, next_begin = 0, next_end = 0;
  auto look = [&](Units offset) {
    for (; entering < way_by_begin_.size() && way_by_begin_[entering].begin < offset + size; ++entering) {
      const ItemIndex other = way_by_begin_[entering].item;
      ++num_inside;
      problem_.is_fixed(other) ? void(++num_fixed_inside) : void(cost += cost_of(other));
    }
    for (; leaving < way_by_end_.size() && way_by_end_[leaving].end <= offset; ++leaving) {
      const ItemIndex other = way_by_end_[leaving].item;
      --num_inside;
      problem_.is_fixed(other) ? void(--num_fixed_inside) : void(cost -= cost_of(other));
    }
    if (num_fixed_inside > 0) return;
    Target target{offset, cost * (1 + kNoise * random_.uniform()), num_inside == 0};
    if (target.is_free) {
      // Among free places the tightest one: what is left below and above over the whole life.
      const Units above = entering < way_by_begin_.size() ? way_by_begin_[entering].begin : capacity_;
      const Units below = leaving > 0 ? way_by_end_[leaving - 1].end : 0;
      target.cost = static_cast<double>(above - below - size);
      if (!best.is_free || target.cost < best.cost) best = target;
    } else if (!best.is_free && (best.offset == kUnplaced || target.cost < best.cost)) {
      best = target;
    }
  };
  Units looked_at = 0;
  look(0);
  while (next_end < way_by_end_.size() || next_begin < way_by_begin_.size()) {
    const Units after = next_end < way_by_end_.size() ? way_by_end_[next_end].end : kNever;
    const Units before = next_begin < way_by_begin_.size() ? way_by_begin_[next_begin].begin - size : kNever;
    const Units offset = std::min(after, before);
    if (after == offset) ++next_end;
    if (before == offset) ++next_begin;
    if (offset <= looked_at) continue;
    if (offset + size > capacity_) break;
    look(offset);
    looked_at = offset;
  }
  if (looked_at < capacity_ - size) look(capacity_ - size);
  return best;
}

void Repair::move(ItemIndex i) {
  const Target target = find_target(i);
  if (target.offset == kUnplaced) return;  // fixed items leave no place at all
  if (!target.is_free) {
    pushes_[static_cast<std::size_t>(i)] += 1;
    const Units end = target.offset + problem_.item(i).size;
    for (const Place& place : way_by_begin_) {
      if (place.begin >= end) break;
      if (place.end > target.offset) put(place.item, kUnplaced);
    }
  }
  put(i, target.offset);
}

void Repair::put(ItemIndex i, Units offset) {
  Units& now = offsets_[static_cast<std::size_t>(i)];
  undo_.emplace_back(i, now);
  ItemIndex& at = unplaced_at_[static_cast<std::size_t>(i)];
  if (now != kUnplaced) {
    by_begin_.erase(place_of(i));
    by_end_.erase(place_of(i));
    at = static_cast<ItemIndex>(unplaced_.size());
    unplaced_.push_back(i);
    unplaced_area_ += area_[static_cast<std::size_t>(i)];
  }
  now = offset;
  if (now != kUnplaced) {
    by_begin_.insert(place_of(i));
    by_end_.insert(place_of(i));
    const ItemIndex last = unplaced_.back();
    unplaced_[static_cast<std::size_t>(at)] = last;
    unplaced_at_[static_cast<std::size_t>(last)] = at;
    unplaced_.pop_back();
    unplaced_area_ -= area_[static_cast<std::size_t>(i)];
  }
}

void Repair::restore() {
  std::vector<std::pair<ItemIndex, Units>> undo;
  undo.swap(undo_);
  for (auto step = undo.rbegin(); step != undo.rend(); ++step) put(step->first, step->second);
  undo_.clear();
}

}  // namespace stalloc
