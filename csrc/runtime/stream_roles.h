// Numbers streams by first appearance. Handles change from run to run, the order of appearance does not.
// Not thread-safe: the engine's lock guards it.
#pragma once

#include <array>

#include "core/types.h"

namespace stalloc {

class StreamRoles {
 public:
  static constexpr RoleIndex kMaxRoles = 256;
  static constexpr RoleIndex kNoRole = -1;

  // The stream's number; a stream not seen before gets the next one, kNoRole when there is none left.
  RoleIndex index_of(StreamHandle stream) noexcept {
    if (last_ < count_ && handles_[static_cast<std::size_t>(last_)] == stream) return last_;
    for (RoleIndex role = 0; role < count_; ++role)
      if (handles_[static_cast<std::size_t>(role)] == stream) return last_ = role;
    if (count_ == kMaxRoles) return kNoRole;
    handles_[static_cast<std::size_t>(count_)] = stream;
    return last_ = count_++;
  }
  StreamHandle handle_of(RoleIndex role) const noexcept { return handles_[static_cast<std::size_t>(role)]; }
  RoleIndex count() const noexcept { return count_; }

 private:
  std::array<StreamHandle, kMaxRoles> handles_{};
  RoleIndex count_ = 0;
  RoleIndex last_ = 0;
};

}  // namespace stalloc
