// Which of the things that every step asks for a request is, told by its size in a batch of any length.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "core/period.h"

namespace stalloc {

inline constexpr std::int32_t kNoKind = -1;

// A recorded step, and what the period's variables are worth in it; 0 where one is not known.
struct StepValues {
  std::int64_t step = 0;
  std::vector<Bytes> values;
};

// Requests of a constant size, or of one that follows a variable of the batch, are of one kind where they follow it alike.
// Kinds of which there are many are left out: what is routed soon has their size by chance.
using KindModels = std::vector<SizeModel>;

// The kinds of what the period foretells.
KindModels kinds_of(const Period& period);
// The sizes of the first of these steps that all others have too, constant or in proportion to a variable of the batch:
// found without pairing any requests. Appended to `kinds`.
void add_shared_kinds(const Lifetimes& lifetimes, const Period& period, const std::vector<StepValues>& steps, KindModels& kinds);

// The kinds in one step, by size.
class SizeKinds {
 public:
  SizeKinds(const KindModels& kinds, const std::vector<Bytes>& values);

  // The number of the kind, the same in every step, by the size as rounded; kNoKind for all others.
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
