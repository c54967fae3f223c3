// A torch memory snapshot as columns, whatever version wrote it. Throws Error on all that is none.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/pickle_tree.h"
#include "core/snapshot_stacks.h"

namespace stalloc {

struct SnapshotEvents {
  std::vector<std::uint8_t> action;
  std::vector<std::uint64_t> address;
  std::vector<std::int64_t> size;
  std::vector<std::uint64_t> stream;
  std::vector<std::int64_t> time_us;  // -1: not recorded
  std::vector<std::int32_t> stack;    // -1: none

  void reserve(std::size_t count) {
    action.reserve(count);
    address.reserve(count);
    size.reserve(count);
    stream.reserve(count);
    time_us.reserve(count);
    stack.reserve(count);
  }
};

struct SnapshotSegments {
  std::vector<std::int32_t> device;
  std::vector<std::uint64_t> address;
  std::vector<std::int64_t> size;
  std::vector<std::uint64_t> stream;
  std::vector<std::uint8_t> is_small, is_expandable;
  std::vector<std::string> pool;  // "0.0": the default pool
};

struct SnapshotBlocks {
  std::vector<std::int32_t> segment;
  std::vector<std::uint64_t> address;
  std::vector<std::int64_t> size, requested;
  std::vector<std::uint8_t> state;  // 0 free, 1 allocated, 2 waits for streams
  std::vector<std::int32_t> stack;
};

class SnapshotReader {
 public:
  explicit SnapshotReader(const PickleTree& tree) : tree_(tree), stacks_(tree) {}

  void read();

  // What was read; whoever takes it over may move from it.
  std::vector<SnapshotEvents>& devices() noexcept { return devices_; }
  SnapshotSegments& segments() noexcept { return segments_; }
  SnapshotBlocks& blocks() noexcept { return blocks_; }
  const SnapshotStacks& stacks() const noexcept { return stacks_; }

 private:
  void read_events(PickleTree::Value trace);
  void read_segment(PickleTree::Value segment);
  // Returns where the next block begins: old snapshots give no addresses of blocks.
  std::uint64_t read_block(PickleTree::Value block, std::int32_t segment, std::uint64_t next);
  PickleTree::Value frames_of(PickleTree::Value block) const;
  std::string pool_of(PickleTree::Value id) const;
  std::uint8_t action_of(PickleTree::Value event);

  std::int64_t integer(PickleTree::Value dict, const char* name, std::int64_t least, std::int64_t most,
                       std::int64_t missing) const;
  std::int64_t bytes(PickleTree::Value dict, const char* name, std::int64_t missing = 0) const;
  std::int64_t held_bytes(PickleTree::Value dict, const char* name, std::int64_t missing = 0) const;
  std::uint64_t address(PickleTree::Value dict, const char* name) const;
  std::uint64_t stream(PickleTree::Value dict) const;
  const std::string* text(PickleTree::Value dict, const char* name) const;

  const PickleTree& tree_;
  SnapshotStacks stacks_;
  std::vector<SnapshotEvents> devices_;
  SnapshotSegments segments_;
  SnapshotBlocks blocks_;
  std::vector<std::uint8_t> action_of_text_;
  std::size_t num_events_ = 0;
  std::size_t num_blocks_ = 0;
};

}  // namespace stalloc
