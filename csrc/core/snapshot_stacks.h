// The call stacks of a snapshot's events and blocks, each kept once.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/pickle_tree.h"

namespace stalloc {

class SnapshotStacks {
 public:
  explicit SnapshotStacks(const PickleTree& tree) : tree_(tree) {}

  // The stack's number; -1 for none. `frames` is a list of dicts, innermost first.
  std::int32_t id_of(PickleTree::Value frames);

  struct Frame {
    const std::string* file = nullptr;  // null: not told
    std::int64_t line = 0;
    const std::string* function = nullptr;
  };
  // The texts are the tree's.
  std::vector<Frame> frames() const;
  // Stack i is stack_frames()[stack_begin()[i] .. stack_begin()[i + 1]), indices into frames().
  const std::vector<std::int64_t>& stack_begin() const noexcept { return begin_; }
  const std::vector<std::int32_t>& stack_frames() const noexcept { return frames_of_; }

 private:
  struct Hash {
    std::size_t operator()(const std::vector<std::int32_t>& stack) const noexcept;
  };

  std::int32_t new_id_of(PickleTree::Value frames);
  std::int32_t frame_id(PickleTree::Value frame);
  const std::string* text_of(PickleTree::Value value) const {
    return value.tag() == PickleTree::Tag::kText ? &tree_.text(value) : nullptr;
  }

  const PickleTree& tree_;
  std::vector<PickleTree::Value> frames_;
  std::unordered_map<std::size_t, std::int32_t> frame_index_;
  std::unordered_map<std::vector<std::int32_t>, std::int32_t, Hash> index_;
  std::unordered_map<std::size_t, std::int32_t> id_of_list_;  // of deep stacks
  std::vector<std::int64_t> begin_{0};
  std::vector<std::int32_t> frames_of_;
};

}  // namespace stalloc
