// Which role freed which part of a space last: what its next user has to wait for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/types.h"

namespace stalloc {

// What streams hand over to each other is followed in pages of this size. Blocks may share one: what is told is then the
// later of both.
inline constexpr Bytes kHandoverPage = Bytes{64} << 10;

// By role and page the number of the latest free; numbers start at 1 and mostly grow. A free of gigabytes touches a word
// for every 4 MiB and pages only at its ends.
class LastFrees {
 public:
  LastFrees(Bytes size, RoleIndex num_roles);

  bool knows(RoleIndex role) const noexcept { return role >= 0 && static_cast<std::size_t>(role) < newest_.size(); }
  void note(Bytes offset, Bytes size, RoleIndex role, std::uint32_t number) noexcept;
  // The highest number of another role than `role` in these pages; `known` where none is higher.
  std::uint32_t latest_foreign(Bytes offset, Bytes size, RoleIndex role, std::uint32_t known = 0) const noexcept;

 private:
  struct Stretch {
    std::uint32_t latest = 0;   // of any of its pages
    std::uint32_t covering = 0;  // of a free of all of them at once
  };

  std::size_t num_pages_;
  std::size_t num_stretches_;
  std::vector<std::uint32_t> newest_;  // by role
  std::vector<std::uint32_t> pages_;   // by role and page, of frees that did not cover its stretch
  std::vector<Stretch> stretches_;     // by role and stretch
};

}  // namespace stalloc
