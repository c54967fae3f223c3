// Finds the items that live at some time in a span, placed or not.
#pragma once

#include <vector>

#include "core/planner_problem.h"

namespace stalloc {

// Items by birth, and every so many instants the list of all that are alive. Never changes; shared by threads.
// Memory is linear: checkpoints are as far apart as it takes for their lists to hold about as much as the items.
class Timeline {
 public:
  explicit Timeline(const Problem& problem);

  // An upper estimate of what a visit to [lower, upper) touches.
  std::size_t cost(Instant lower, Instant upper) const noexcept {
    return checkpoint_size(lower) + born_before(upper) - born_before(checkpoint_of(lower) * spacing_);
  }

  template <class Visitor>
  void visit(Instant lower, Instant upper, Visitor visitor) const {
    const Instant checkpoint = checkpoint_of(lower);
    const std::size_t alive_end = checkpoint_begin_[static_cast<std::size_t>(checkpoint) + 1];
    for (std::size_t k = checkpoint_begin_[static_cast<std::size_t>(checkpoint)]; k < alive_end; ++k) {
      if (problem_.item(alive_[k]).upper > lower) visitor(alive_[k]);
    }
    const std::size_t born_end = born_before(lower), end = born_before(upper);
    std::size_t k = born_before(checkpoint * spacing_);
    for (; k < born_end; ++k) {
      if (problem_.item(by_birth_[k]).upper > lower) visitor(by_birth_[k]);
    }
    for (; k < end; ++k) visitor(by_birth_[k]);
  }

 private:
  Instant checkpoint_of(Instant instant) const noexcept { return instant / spacing_; }
  std::size_t checkpoint_size(Instant instant) const noexcept {
    const auto checkpoint = static_cast<std::size_t>(checkpoint_of(instant));
    return checkpoint_begin_[checkpoint + 1] - checkpoint_begin_[checkpoint];
  }
  std::size_t born_before(Instant instant) const noexcept { return born_before_[static_cast<std::size_t>(instant)]; }

  const Problem& problem_;
  Instant spacing_ = 1;
  std::vector<ItemIndex> by_birth_;
  std::vector<std::size_t> born_before_;       // by instant, one more than there are
  std::vector<ItemIndex> alive_;               // born before the checkpoint and alive at it
  std::vector<std::size_t> checkpoint_begin_;  // into alive_
};

}  // namespace stalloc
