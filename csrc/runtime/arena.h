// The memory of one space, of a stream role or shared by several: extents taken from the upstream, tiled by served blocks.
// Not thread-safe: the engine's lock guards it. Takes and returns no memory itself.
#pragma once

#include <bitset>
#include <memory>
#include <vector>

#include "core/block_map.h"
#include "core/last_frees.h"
#include "runtime/extent_table.h"
#include "runtime/fence_rows.h"
#include "runtime/stream_roles.h"

namespace stalloc {

class Arena {
 public:
  using RoleSet = std::bitset<StreamRoles::kMaxRoles>;

  // What is kept beside each block.
  struct Note {
    Bytes requested = 0;  // as asked for, before rounding
    RoleIndex role = 0;   // of the stream it was asked for on
    RoleSet uses;         // other streams that record_stream named
    std::int32_t fences = 0;  // freed, and so many fences are still open
    Epoch freed_at = 0;       // where freed
    bool has_uses = false;
    bool freed = false;  // no longer the program's; its bytes wait for fences
    bool hands_over = false;  // another role's slot takes its bytes over
    bool settling = false;    // taken; its stream is being made to wait for others
    bool lost = false;   // used by a stream we cannot follow: never given out again
  };

  struct Extent {
    Extent(RoleIndex role, std::uint64_t base, Bytes size, std::size_t max_blocks)
        : role(role), base(base), map(size, max_blocks), notes(map.max_blocks()) {}
    RoleIndex role;  // of the stream it was taken on
    std::uint64_t base;
    BlockMap map;
    std::vector<Note> notes;  // by block index
    bool poisoned = false;    // debug mode: what is free in it holds DebugMemory::kPoison
    std::unique_ptr<LastFrees> owners;  // of a shared space, numbered by epochs; null: only `role` uses it
    bool held_back = false;  // may not go back to the upstream now
  };

  // A block in one of the extents; extent is null when there is none.
  struct Place {
    Extent* extent = nullptr;
    BlockMap::BlockIndex block = BlockMap::kNoBlock;
    explicit operator bool() const noexcept { return extent != nullptr; }
    std::uint64_t address() const noexcept {
      return extent->base + static_cast<std::uint64_t>(extent->map.offset_of(block));
    }
    Bytes size() const noexcept { return extent->map.size_of(block); }
    Note& note() const noexcept { return extent->notes[block]; }
  };

  // Room for all extents there can be, so that none of what follows allocates.
  void make_room() {
    extents_.reserve(ExtentTable::kMaxExtents);
    planned_.reserve(ExtentTable::kMaxExtents);
  }
  // The plan's address space is that of its extents, one after another. Extents of an earlier plan serve gaps only.
  void add_plan_extent(std::unique_ptr<Extent> extent) noexcept {
    planned_.push_back(extent.get());
    extents_.push_back(std::move(extent));
    count_planned();
  }
  void forget_plan() noexcept {
    planned_.clear();
    count_planned();
  }
  const std::vector<Extent*>& planned() const noexcept { return planned_; }
  Bytes planned_bytes() const noexcept { return planned_bytes_; }
  // The plan's extents in which something lives, and the others, taken out of the plan and, if they may go, of the arena.
  std::vector<Extent*> live_plan_extents() const;
  bool are_live_plan_extents(const std::vector<Extent*>& those) const noexcept;
  void take_idle_plan_extents(std::vector<std::unique_ptr<Extent>>& taken) noexcept;  // `taken` has room for all
  Place take_slot(Bytes offset, Bytes size) noexcept;
  Place take_at(Extent* extent, Bytes offset, Bytes size) noexcept;
  Place take_from(Extent* extent, BlockMap::BlockIndex free_block, Bytes offset, Bytes size) noexcept;
  Place take_gap(Bytes size) noexcept;
  Place first_used(Bytes offset, Bytes size) noexcept;  // of the blocks in a slot's range
  Place find(std::uint64_t address) const noexcept;
  // Extents in which nothing lives, taken out of the arena; `keep_plan` spares the plan's. `taken` has room for all.
  void take_empty_extents(bool keep_plan, std::vector<std::unique_ptr<Extent>>& taken) noexcept;
  Bytes empty_extent_bytes(bool keep_plan) const noexcept;
  const std::vector<std::unique_ptr<Extent>>& extents() const noexcept { return extents_; }

  bool spares(const Extent* extent, bool keep_plan) const noexcept;  // from the two above

 private:
  void count_planned() noexcept;

  std::vector<std::unique_ptr<Extent>> extents_;
  std::vector<Extent*> planned_;  // some of extents_
  Bytes planned_bytes_ = 0;       // of these
};

}  // namespace stalloc
