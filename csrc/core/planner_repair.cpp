#include "core/planner_repair.h"

#include <algorithm>

namespace stalloc {
namespace {

constexpr double kNoise = 0.1;           // of a cost; breaks ties and cycles
constexpr double kStubbornness = 0.3;    // share of what an item drives out that its own cost grows by
constexpr int kTournament = 3;           // unplaced items compared to pick one
constexpr int kMovesPerClockCheck = 16;
constexpr std::size_t kSortPerScan = 8;  // sorting one found place costs about as much as scanning this many

Offsets cut_at(const Problem& problem, Offsets offsets, Units capacity) {
  for (ItemIndex i = 0; i < problem.num_movable; ++i) {
    Units& offset = offsets[static_cast<std::size_t>(i)];
    if (offset != kUnplaced && offset + problem.item(i).size > capacity) offset = kUnplaced;
  }
  return offsets;
}

}  // namespace

Repair::Repair(const Problem& problem, const Timeline& timeline, Offsets offsets, Units capacity,
               const RepairEffort& effort, std::uint64_t seed)
    : problem_(problem), timeline_(timeline), offsets_(cut_at(problem, std::move(offsets), capacity)),
      capacity_(capacity), effort_(effort), random_(seed), by_begin_(begins()), by_end_(ends()),
       unplaced_at_(problem.items.size(), 0) {
  double total = 0;
  area_.reserve(problem.items.size());
  for (const Item& item : problem.items) {
    area_.push_back(static_cast<double>(item.size) * static_cast<double>(item.upper - item.lower));
    total += area_.back();
  }
  for (double& area : area_) area *= static_cast<double>(area_.size()) / total;
  cost_ = area_;
  for (ItemIndex i = 0; i < problem.num_movable; ++i) {
    if (offsets_[static_cast<std::size_t>(i)] != kUnplaced) continue;
    unplaced_at_[static_cast<std::size_t>(i)] = static_cast<ItemIndex>(unplaced_.size());
    unplaced_.push_back(i);
    unplaced_area_ += area_[static_cast<std::size_t>(i)];
  }
}

bool Repair::run(const Deadline& deadline) {
  double best_area = unplaced_area_;
  int moves_since_best = 0, restores = 0;
  while (!unplaced_.empty()) {
    const bool out_of_time = num_moves_ % kMovesPerClockCheck == 0 && deadline.is_over();
    if (out_of_time || moves_since_best >= effort_.patience) {
      restore();
      moves_since_best = 0;
      if (out_of_time || ++restores > effort_.num_restores) return false;
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

Place Repair::begin_of(ItemIndex i) const {
  const Item& item = problem_.item(i);
  return {offsets_[static_cast<std::size_t>(i)], i, item.lower, item.upper};
}

Place Repair::end_of(ItemIndex i) const {
  const Item& item = problem_.item(i);
  return {offsets_[static_cast<std::size_t>(i)] + item.size, i, item.lower, item.upper};
}

std::vector<Place> Repair::begins() const {
  std::vector<Place> places;
  for (ItemIndex i = 0; i < problem_.num_items(); ++i) {
    if (offsets_[static_cast<std::size_t>(i)] != kUnplaced) places.push_back(begin_of(i));
  }
  return places;
}

std::vector<Place> Repair::ends() const {
  std::vector<Place> places = begins();
  for (Place& place : places) place = end_of(place.item);
  return places;
}

void Repair::collect_in_the_way(ItemIndex i) {
  const Item& item = problem_.item(i);
  if (timeline_.cost(item.lower, item.upper) * kSortPerScan > problem_.items.size()) {
    num_in_way_ = by_begin_.collect(item.lower, item.upper, begins_in_way_);
    by_end_.collect(item.lower, item.upper, ends_in_way_);
    return;
  }
  const std::size_t most = timeline_.cost(item.lower, item.upper);
  if (begins_in_way_.size() < most) begins_in_way_.resize(most);
  if (ends_in_way_.size() < most) ends_in_way_.resize(most);
  num_in_way_ = 0;
  timeline_.visit(item.lower, item.upper, [this](ItemIndex other) {
    if (offsets_[static_cast<std::size_t>(other)] == kUnplaced) return;
    begins_in_way_[num_in_way_] = begin_of(other);
    ends_in_way_[num_in_way_++] = end_of(other);
  });
  SortedPlaces::sort(begins_in_way_.data(), begins_in_way_.data() + num_in_way_);
  SortedPlaces::sort(ends_in_way_.data(), ends_in_way_.data() + num_in_way_);
}

// Moves the window up to `offset` and keeps it if it is the best so far.
void Repair::look_at(Units offset, Units size, Window& window, Target& best) {
  for (; window.entering < num_in_way_; ++window.entering) {
    const Place& place = begins_in_way_[window.entering];
    if (place.at >= offset + size) break;
    ++window.num_inside;
    problem_.is_fixed(place.item) ? void(++window.num_fixed_inside) : void(window.cost += cost_of(place.item));
  }
  for (; window.leaving < num_in_way_; ++window.leaving) {
    const Place& place = ends_in_way_[window.leaving];
    if (place.at > offset) break;
    --window.num_inside;
    problem_.is_fixed(place.item) ? void(--window.num_fixed_inside) : void(window.cost -= cost_of(place.item));
  }
  if (window.num_fixed_inside > 0) return;
  if (window.num_inside == 0) {
    // Among free places the tightest one: what is left below and above over the whole life.
    const bool is_top = window.entering == num_in_way_;
    const Units above = is_top ? capacity_ : begins_in_way_[window.entering].at;
    const Units below = window.leaving > 0 ? ends_in_way_[window.leaving - 1].at : 0;
    const auto spare = static_cast<double>(above - below - size);
    if (!best.is_free || spare < best.cost) best = {offset, spare, true};
  } else if (!best.is_free && (best.offset == kUnplaced || window.cost < best.cost)) {
    const double cost = window.cost * (1 + kNoise * random_.uniform());
    if (best.offset == kUnplaced || cost < best.cost) best = {offset, cost, false};
  }
}

// A window that slides down until something below stops it only loses what is inside, so that offsets just above
// some end are all that is worth a look.
Repair::Target Repair::find_target(ItemIndex i) {
  collect_in_the_way(i);
  const Units size = problem_.item(i).size;
  Target best;
  Window window;
  Units looked_at = 0;
  look_at(0, size, window, best);
  for (std::size_t k = 0; k < num_in_way_; ++k) {
    const Units offset = ends_in_way_[k].at;
    if (offset == looked_at) continue;
    if (offset + size > capacity_) break;
    look_at(offset, size, window, best);
    looked_at = offset;
  }
  return best;
}

void Repair::move(ItemIndex i) {
  const Target target = find_target(i);
  if (target.offset == kUnplaced) return;  // fixed items leave no place at all
  if (!target.is_free) {
    cost_[static_cast<std::size_t>(i)] += kStubbornness * target.cost;
    const Units end = target.offset + problem_.item(i).size;
    for (std::size_t k = 0; k < num_in_way_; ++k) {
      const Place& place = begins_in_way_[k];
      if (place.at >= end) break;
      if (place.at + problem_.item(place.item).size > target.offset) put(place.item, kUnplaced);
    }
  }
  put(i, target.offset);
}

void Repair::put(ItemIndex i, Units offset) {
  Units& now = offsets_[static_cast<std::size_t>(i)];
  undo_.emplace_back(i, now);
  ItemIndex& at = unplaced_at_[static_cast<std::size_t>(i)];
  if (now != kUnplaced) {
    by_begin_.erase(begin_of(i));
    by_end_.erase(end_of(i));
    at = static_cast<ItemIndex>(unplaced_.size());
    unplaced_.push_back(i);
    unplaced_area_ += area_[static_cast<std::size_t>(i)];
  }
  now = offset;
  if (now != kUnplaced) {
    by_begin_.insert(begin_of(i));
    by_end_.insert(end_of(i));
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
