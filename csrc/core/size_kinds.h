// Which of the things that every step asks for a request is, told by its size in a batch of any length.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "core/period.h"

namespace stalloc {

inline constexpr std::int32_t kNoKind = -1;

// Of one step: requests of a constant size, or of one that follows a variable of the batch, are of one kind where they
// follow it alike. A kind has the same number in every step. Kinds of which there are many are left out: what is routed
// soon has their size by chance.
class SizeKinds {
 public:
  // `values` are those of the period's variables in the step; 0 where one is not known.
  SizeKinds(const Period& period, const std::vector<Bytes>& values);

  // By the size as rounded; kNoKind for all others.
  std::int32_t kind_of(Bytes size) const noexcept {
    const auto found = kinds_.find(size);
    return found == kinds_.end() ? kNoKind : found->second;
  }

 private:
  std::unordered_map<Bytes, std::int32_t> kinds_;
};

// By variable: some planned request follows it, so that it is one of the batch and not of the routing.
std::vector<bool> batch_variables(const Period& period);

}  // namespace stalloc
