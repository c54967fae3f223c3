// Which stream used which part of an extent last: what must be waited for before another stream gets it.
// Not thread-safe: the engine's lock guards it.
#pragma once

#include <cstdint>
#include <vector>

#include "core/handover.h"
#include "core/types.h"

namespace stalloc {

// Counts the fence rows of a run. A free belongs to the current epoch; the row that ends an epoch covers it and all before.
using Epoch = std::uint32_t;

// For each page and role the epoch of the latest free. Blocks may share a page: what is told is then the later of both.
class RangeOwners {
 public:
  RangeOwners(Bytes size, RoleIndex num_roles)
      : num_pages_(static_cast<std::size_t>((size + kHandoverPage - 1) / kHandoverPage)),
        num_roles_(static_cast<std::size_t>(num_roles)),
        freed_(num_pages_ * num_roles_, 0) {}

  bool knows(RoleIndex role) const noexcept { return role >= 0 && static_cast<std::size_t>(role) < num_roles_; }
  void note_free(Bytes offset, Bytes size, RoleIndex role, Epoch epoch) noexcept;
  // The latest epoch in which another role than `role` freed a byte of these pages; 0: none ever did.
  Epoch last_foreign(Bytes offset, Bytes size, RoleIndex role) const noexcept;

 private:
  std::size_t num_pages_;
  std::size_t num_roles_;
  std::vector<Epoch> freed_;  // by role, by page
};

}  // namespace stalloc
