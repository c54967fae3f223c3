#include "runtime/range_owners.h"

#include <algorithm>

namespace stalloc {
namespace {

std::size_t first_page(Bytes offset) noexcept { return static_cast<std::size_t>(offset / kHandoverPage); }
std::size_t end_page(Bytes offset, Bytes size) noexcept {
  return static_cast<std::size_t>((offset + size - 1) / kHandoverPage) + 1;
}

}  // namespace

void RangeOwners::note_free(Bytes offset, Bytes size, RoleIndex role, Epoch epoch) noexcept {
  Epoch* pages = freed_.data() + static_cast<std::size_t>(role) * num_pages_;
  for (std::size_t page = first_page(offset); page < end_page(offset, size); ++page) pages[page] = std::max(pages[page], epoch);
}

Epoch RangeOwners::last_foreign(Bytes offset, Bytes size, RoleIndex role) const noexcept {
  Epoch latest = 0;
  for (std::size_t other = 0; other < num_roles_; ++other) {
    if (other == static_cast<std::size_t>(role)) continue;
    const Epoch* pages = freed_.data() + other * num_pages_;
    latest = std::max(latest, *std::max_element(pages + first_page(offset), pages + end_page(offset, size)));
  }
  return latest;
}

}  // namespace stalloc
