// The values that a period's variables have in a step that was not used to learn them.
#pragma once

#include <vector>

#include "core/period.h"

namespace stalloc {

// `aligned` gives, for each allocation of the step that begins at block `begin`, the period tick it was paired with by
// size alone, or -1. What a first step asks for besides may stand beside a variable's defining request and be mistaken
// for it, so the value is the one among the requests near it that most of the variable's other requests follow. One
// value a variable; 0 where nothing tells it.
std::vector<Bytes> find_values(const Lifetimes& lifetimes, std::size_t begin, const Period& period,
                               const std::vector<Tick>& aligned);

// Improves `values` for a step whose pairs are not to be trusted: a batch whose sizes happen to be those of weights is
// paired with these. A variable's value is the request, among those where its followers are expected, with which most of
// the sizes that the variable foretells are there, wherever they are.
void find_values_by_sizes(const Lifetimes& lifetimes, std::int64_t step, const Period& period, std::vector<Bytes>& values);

}  // namespace stalloc
