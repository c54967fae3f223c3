#include "core/last_frees.h"

#include <algorithm>

namespace stalloc {
namespace {

constexpr std::size_t kStretch = 64;  // pages

struct Pages {
  std::size_t begin;
  std::size_t end;
};

Pages pages_of(Bytes offset, Bytes size) noexcept {
  return {static_cast<std::size_t>(offset / kHandoverPage), static_cast<std::size_t>((offset + size - 1) / kHandoverPage) + 1};
}

// Calls visit(stretch, first page, end page) for the part of the pages in each stretch.
template <class Visitor>
void for_each_stretch(Pages pages, Visitor visit) {
  for (std::size_t page = pages.begin; page < pages.end;) {
    const std::size_t stretch = page / kStretch, end = std::min(pages.end, (stretch + 1) * kStretch);
    visit(stretch, page, end);
    page = end;
  }
}

}  // namespace

LastFrees::LastFrees(Bytes size, RoleIndex num_roles)
    : num_pages_(static_cast<std::size_t>((size + kHandoverPage - 1) / kHandoverPage)),
      num_stretches_((num_pages_ + kStretch - 1) / kStretch), newest_(static_cast<std::size_t>(num_roles), 0) {
  pages_.assign(num_pages_ * newest_.size(), 0);
  stretches_.resize(num_stretches_ * newest_.size());
}

void LastFrees::note(Bytes offset, Bytes size, RoleIndex role, std::uint32_t number) noexcept {
  const auto own = static_cast<std::size_t>(role);
  newest_[own] = std::max(newest_[own], number);
  std::uint32_t* pages = pages_.data() + own * num_pages_;
  Stretch* stretches = stretches_.data() + own * num_stretches_;
  for_each_stretch(pages_of(offset, size), [&](std::size_t at, std::size_t page, std::size_t end) {
    Stretch& stretch = stretches[at];
    stretch.latest = std::max(stretch.latest, number);
    if (end - page == kStretch) stretch.covering = std::max(stretch.covering, number);
    else
      for (; page < end; ++page) pages[page] = std::max(pages[page], number);
  });
}

std::uint32_t LastFrees::latest_foreign(Bytes offset, Bytes size, RoleIndex role, std::uint32_t known) const noexcept {
  for (std::size_t other = 0; other < newest_.size(); ++other) {
    if (other == static_cast<std::size_t>(role) || newest_[other] <= known) continue;
    const std::uint32_t* pages = pages_.data() + other * num_pages_;
    const Stretch* stretches = stretches_.data() + other * num_stretches_;
    for_each_stretch(pages_of(offset, size), [&](std::size_t at, std::size_t page, std::size_t end) {
      const Stretch& stretch = stretches[at];
      if (stretch.latest <= known) return;
      if (end - page == kStretch) {
        known = stretch.latest;
        return;
      }
      known = std::max(known, stretch.covering);
      for (; page < end; ++page) known = std::max(known, pages[page]);
    });
  }
  return known;
}

}  // namespace stalloc
