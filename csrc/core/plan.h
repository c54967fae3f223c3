// The slots of one rank and the order in which they are asked for.
//
// A table is the sequence of requests of one step, kept apart by role. The first `num_prologue` tables are
// those of the first steps, each used once; the other `num_period` repeat for ever. A plan for a run that is
// already under way has no prologue. Tables name slots and do not hold them, because the first steps use the
// period's slots wherever they do what every step does.
//
// The timeline: construction, from 0 to window_begin, then one turn of the period, the window. What happens in a
// step happens at that point of the window, in the first step as in all others.
#pragma once

#include <cstdint>
#include <vector>

#include "core/types.h"

namespace stalloc {

enum class SlotKind : std::uint8_t {
  kTemporary = 0,   // born and freed within the prologue or within the period
  kCyclic = 1,      // crosses the cut of the period
  kPersistent = 2,  // born in the prologue, alive through every period
  kUnplanned = 3,   // keeps its position in the sequence; has no place, but a lifetime
  kRoom = 4,        // kept for requests without a place; no table names it
};

inline constexpr std::int32_t kNoVariable = -1;

// How many bytes a request asks for: `base` (below 0: it cannot be foretold), or `base + slope * x` where x is the value that its variable has in
// the step: the bytes asked for by the variable's defining request (for instance that of the batch's tokens).
struct SizeModel {
  double base = 0;
  double slope = 0;
  std::int32_t variable = kNoVariable;
  bool defines = false;  // this request tells the variable's value

  Bytes bytes_at(Bytes value) const noexcept;  // rounded up to kAlignment
};

// A planned place: [offset, offset + size) of its role's space during [birth, death).
struct Slot {
  Bytes size = 0;            // the most it holds; a multiple of kAlignment
  Bytes offset = kUnplaced;  // a multiple of kAlignment
  Tick birth = 0;
  Tick death = 0;  // > window_end: goes on at window_begin (cyclic)
  RoleIndex role = 0;
  SlotKind kind = SlotKind::kUnplanned;
  SizeModel model;
};

struct Plan {
  RoleIndex num_roles = 0;
  std::int32_t num_prologue = 0;
  std::int32_t num_period = 0;
  std::vector<Slot> slots;
  std::vector<std::int32_t> table_slots;  // slot indices, table by table, role by role
  // (table t, role r) is table_slots[table_begin[t * num_roles + r] .. table_begin[t * num_roles + r + 1]).
  std::vector<std::int64_t> table_begin;
  // The address space of each role, named by the first role that has it. Roles that share one hand memory over from
  // stream to stream; only hosts whose use of streams was audited get such a plan (docs/streams.md).
  std::vector<RoleIndex> role_space;
  std::vector<Bytes> arena_bytes;        // one a role; of its space where it names one, else 0
  std::vector<Bytes> lower_bound_bytes;  // likewise
  std::vector<Bytes> variable_bytes;     // the largest value of each variable that the slots are sized for
  Tick window_begin = 0;
  Tick window_end = 0;

  std::int32_t num_tables() const noexcept { return num_prologue + num_period; }
  // The table of step `step`, counted from the start of the plan.
  std::int32_t table_of(std::int64_t step) const noexcept {
    if (step < num_prologue) return static_cast<std::int32_t>(step);
    return num_prologue + static_cast<std::int32_t>((step - num_prologue) % num_period);
  }
  Bytes total_arena_bytes() const noexcept;
  RoleIndex space_of(RoleIndex role) const noexcept { return role_space[static_cast<std::size_t>(role)]; }
  bool is_shared(RoleIndex space) const noexcept;  // by several roles
  // How many of the space's slots, planned or not, live at once at most: at least that many, where some cross the cut.
  std::size_t most_alive(RoleIndex space) const;
  // By variable: up to which value the plan does as it is. Beyond variable_bytes requests are too long for their slots,
  // which matters once all that follows the variable would lack more than a small share of the arena.
  std::vector<Bytes> tolerated_bytes() const;
  // By variable: which other one it grows with; kNoVariable where it leads. See leading_variables().
  std::vector<std::int32_t> leading() const;
  // What the variables must be planned for where these values were met (0: none), of which `is_told` are this batch's own.
  // What is led by a variable that grew, and is not told yet, is taken to have grown with it. Of batches to come nothing else
  // is known: another micro-step may never have such a long one.
  std::vector<Bytes> needed_variables(const std::vector<Bytes>& met, const std::vector<bool>& is_told) const;
};

inline constexpr RoleIndex kMaxSharingRoles = 16;  // of one space

// By variable, of which so many requests follow it each: which other one it grows with, else kNoVariable. What few requests
// follow is a by-product of the batch, and of the micro-step whose length was told last before it.
std::vector<std::int32_t> leading_variables(const std::vector<std::size_t>& num_followers);

// Each role its own space, or one for all, where there are not too many.
std::vector<RoleIndex> make_role_spaces(RoleIndex num_roles, bool shared);

// Throws Error where the numbers contradict each other or two slots that live at once share a byte. Every
// plan passes here before it is used, wherever it came from. O(n log n).
void check_plan(const Plan& plan);

}  // namespace stalloc
