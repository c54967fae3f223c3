#include "core/planner_obstacles.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

namespace stalloc {
namespace {

// Sweeps over time and keeps the covered addresses as disjoint pieces, each held by one of the live ranges.
class Cover {
 public:
  Cover(Problem& problem, const std::vector<FixedRange>& ranges) : problem_(problem), ranges_(ranges) {}

  void begin_range(std::size_t index, Instant now) {
    live_.insert({ranges_[index].begin, index});
    hold(ranges_[index].begin, ranges_[index].end, index, now);
  }

  // What the dying range held and others still cover passes to them.
  void end_range(std::size_t index, Instant now) {
    const FixedRange& dying = ranges_[index];
    live_.erase({dying.begin, index});
    std::vector<std::pair<Units, Units>> orphaned;
    for (auto piece = pieces_.lower_bound(dying.begin); piece != pieces_.end() && piece->first < dying.end;) {
      if (piece->second.holder != index) {
        ++piece;
        continue;
      }
      emit(piece->first, piece->second, now);
      orphaned.emplace_back(piece->first, piece->second.end);
      piece = pieces_.erase(piece);
    }
    if (orphaned.empty()) return;
    for (auto heir = live_.begin(); heir != live_.end() && heir->first < dying.end; ++heir) {
      for (const auto& [begin, end] : orphaned) {
        const FixedRange& range = ranges_[heir->second];
        if (range.begin < end && begin < range.end) {
          hold(std::max(begin, range.begin), std::min(end, range.end), heir->second, now);
        }
      }
    }
  }

 private:
  struct Piece {
    Units end = 0;
    Instant since = 0;
    std::size_t holder = 0;
  };

  // Adds the parts of [begin, end) that no piece covers yet.
  void hold(Units begin, Units end, std::size_t holder, Instant now) {
    auto piece = pieces_.lower_bound(begin);
    if (piece != pieces_.begin() && std::prev(piece)->second.end > begin) begin = std::prev(piece)->second.end;
    while (begin < end) {
      const Units free_end = piece == pieces_.end() ? end : std::min(end, piece->first);
      if (begin < free_end) pieces_.emplace_hint(piece, begin, Piece{free_end, now, holder});
      if (piece == pieces_.end()) return;
      begin = std::max(begin, piece->second.end);
      ++piece;
    }
  }

  void emit(Units begin, const Piece& piece, Instant now) {
    if (piece.since == now) return;
    problem_.items.push_back({piece.since, now, piece.end - begin});
    problem_.fixed_offsets.push_back(begin);
  }

  Problem& problem_;
  const std::vector<FixedRange>& ranges_;
  std::set<std::pair<Units, std::size_t>> live_;
  std::map<Units, Piece> pieces_;  // by begin
};

}  // namespace

void add_fixed_items(Problem& problem, const std::vector<FixedRange>& ranges) {
  std::vector<std::tuple<Instant, bool, std::size_t>> events;  // deaths sort before births
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    events.emplace_back(ranges[i].lower, true, i);
    events.emplace_back(ranges[i].upper, false, i);
  }
  std::sort(events.begin(), events.end());
  Cover cover(problem, ranges);
  for (const auto& [instant, born, index] : events) {
    if (born) {
      cover.begin_range(index, instant);
    } else {
      cover.end_range(index, instant);
    }
  }
}

}  // namespace stalloc
