#include "core/snapshot_stacks.h"

#include <utility>

namespace stalloc {

using Tag = PickleTree::Tag;
using Value = PickleTree::Value;

namespace {

constexpr std::size_t kDeepStack = 64;

}  // namespace

std::int32_t SnapshotStacks::id_of(Value frames) {
  if (frames.tag() != Tag::kList) return -1;
  if (tree_.items(frames).count < kDeepStack) return new_id_of(frames);
  // Events may share a list: however long it is, it is walked once.
  const auto known = id_of_list_.find(frames.index());
  if (known != id_of_list_.end()) return known->second;
  return id_of_list_[frames.index()] = new_id_of(frames);
}

std::int32_t SnapshotStacks::new_id_of(Value frames) {
  std::vector<std::int32_t> stack;
  for (const Value& frame : tree_.items(frames)) {
    if (frame.tag() == Tag::kDict) stack.push_back(frame_id(frame));
  }
  if (stack.empty()) return -1;
  const auto [it, is_new] = index_.try_emplace(std::move(stack), static_cast<std::int32_t>(begin_.size() - 1));
  if (is_new) {
    frames_of_.insert(frames_of_.end(), it->first.begin(), it->first.end());
    begin_.push_back(static_cast<std::int64_t>(frames_of_.size()));
  }
  return it->second;
}

std::size_t SnapshotStacks::Hash::operator()(const std::vector<std::int32_t>& stack) const noexcept {
  std::uint64_t hash = 1469598103934665603u;
  for (const std::int32_t frame : stack) hash = (hash ^ static_cast<std::uint32_t>(frame)) * 1099511628211u;
  return static_cast<std::size_t>(hash ^ (hash >> 32));
}

// Torch shares one dict among all events that passed a frame.
std::int32_t SnapshotStacks::frame_id(Value frame) {
  const auto [it, is_new] = frame_index_.try_emplace(frame.index(), static_cast<std::int32_t>(frames_.size()));
  if (is_new) frames_.push_back(frame);
  return it->second;
}

std::vector<SnapshotStacks::Frame> SnapshotStacks::frames() const {
  std::vector<Frame> frames;
  for (const Value& frame : frames_) {
    const Value line = tree_.get(frame, "line");
    frames.push_back({text_of(tree_.get(frame, "filename")), line.tag() == Tag::kInt ? line.integer() : 0,
                      text_of(tree_.get(frame, "name"))});
  }
  return frames;
}

}  // namespace stalloc
