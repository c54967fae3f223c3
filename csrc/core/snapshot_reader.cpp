#include "core/snapshot_reader.h"

#include <utility>

#include "core/types.h"

namespace stalloc {

using Tag = PickleTree::Tag;
using Value = PickleTree::Value;

namespace {

constexpr std::int64_t kMostBytes = std::int64_t{1} << 50;  // that may be asked for: a request may fail
constexpr std::int64_t kMostHeldBytes = std::int64_t{1} << 40;
constexpr std::size_t kMostEvents = 8'000'000;
constexpr std::size_t kMostDevices = 1024;
constexpr std::size_t kMostSegments = 1'000'000;
constexpr std::size_t kMostPoolParts = 8;  // torch has two

[[noreturn]] void refuse(const std::string& name, const std::string& value, const std::string& rule) {
  throw Error("reading a snapshot: " + name + "=" + value + ", " + rule +
              ". Give a file from torch.cuda.memory._dump_snapshot().");
}

// The actions in the order of their codes; from 7 on they move no memory.
const char* const kActions[] = {"alloc",       "free_requested", "free_completed", "segment_alloc", "segment_free",
                                "segment_map", "segment_unmap",  "oom",            "snapshot"};
constexpr std::uint8_t kUnknownAction = 9;

std::string range(std::int64_t least, std::int64_t most) {
  return "must be an integer from " + std::to_string(least) + " to " + std::to_string(most);
}

}  // namespace

void SnapshotReader::read() {
  const Value root = tree_.root();
  // torch.cuda.memory_snapshot() is the list of the segments alone.
  const Value segments = root.tag() == Tag::kList ? root : tree_.get(root, "segments");
  const Value traces = tree_.get(root, "device_traces");
  if (segments.tag() != Tag::kList && traces.tag() != Tag::kList) {
    refuse("keys", "(none of ours)", "a snapshot has segments or device_traces");
  }
  // One list may stand in many places: what is read is counted here, not in the file.
  if (tree_.items(segments).count > kMostSegments) {
    refuse("segments", std::to_string(tree_.items(segments).count), "at most " + std::to_string(kMostSegments));
  }
  for (const Value& segment : tree_.items(segments)) read_segment(segment);
  if (tree_.items(traces).count > kMostDevices) refuse("devices", std::to_string(tree_.items(traces).count), "at most 1024");
  for (const Value& trace : tree_.items(traces)) read_events(trace);
}

std::int64_t SnapshotReader::integer(Value dict, const char* name, std::int64_t least, std::int64_t most,
                                     std::int64_t missing) const {
  const Value value = tree_.get(dict, name);
  if (value.tag() == Tag::kNone) return missing;
  if (value.tag() == Tag::kHuge) refuse(name, "(beyond 60 bits)", range(least, most));
  if (value.tag() != Tag::kInt && value.tag() != Tag::kBool) refuse(name, "(no integer)", range(least, most));
  if (value.integer() < least || value.integer() > most) refuse(name, std::to_string(value.integer()), range(least, most));
  return value.integer();
}

std::int64_t SnapshotReader::bytes(Value dict, const char* name, std::int64_t missing) const {
  return integer(dict, name, 0, kMostBytes, missing);
}

std::int64_t SnapshotReader::held_bytes(Value dict, const char* name, std::int64_t missing) const {
  return integer(dict, name, 0, kMostHeldBytes, missing);
}

std::uint64_t SnapshotReader::address(Value dict, const char* name) const {
  return static_cast<std::uint64_t>(integer(dict, name, 0, (std::int64_t{1} << 58), 0));
}

// A handle: any number is as good as another.
std::uint64_t SnapshotReader::stream(Value dict) const {
  const Value value = tree_.get(dict, "stream");
  return value.tag() == Tag::kInt ? static_cast<std::uint64_t>(value.integer()) : 0;
}

const std::string* SnapshotReader::text(Value dict, const char* name) const {
  const Value value = tree_.get(dict, name);
  return value.tag() == Tag::kText ? &tree_.text(value) : nullptr;
}

std::uint8_t SnapshotReader::action_of(Value event) {
  const Value value = tree_.get(event, "action");
  if (value.tag() != Tag::kText) refuse("action", "(no text)", "each event has one");
  while (action_of_text_.size() <= value.index()) {
    const std::string& name = tree_.text({Tag::kText, static_cast<std::int64_t>(action_of_text_.size())});
    std::uint8_t code = 0;
    while (code < kUnknownAction && name != kActions[code]) ++code;
    action_of_text_.push_back(code);
  }
  return action_of_text_[value.index()];
}

void SnapshotReader::read_events(Value trace) {
  SnapshotEvents events;
  const PickleTree::Items all = tree_.items(trace);
  num_events_ += all.count;
  if (num_events_ > kMostEvents) {
    refuse("events", std::to_string(num_events_), "at most " + std::to_string(kMostEvents) +
           " are read: record with a smaller max_entries");
  }
  events.reserve(all.count);
  for (const Value& event : all) {
    if (event.tag() != Tag::kDict) refuse("device_traces", "(no dict)", "each event is a dict");
    const std::uint8_t action = action_of(event);
    events.action.push_back(action);
    events.address.push_back(address(event, action == 7 ? "device_free" : "addr"));
    events.size.push_back(bytes(event, "size"));
    events.stream.push_back(stream(event));
    events.time_us.push_back(integer(event, "time_us", 0, std::int64_t{1} << 58, -1));
    events.stack.push_back(stacks_.id_of(tree_.get(event, "frames")));
  }
  devices_.push_back(std::move(events));
}

void SnapshotReader::read_segment(Value segment) {
  if (segment.tag() != Tag::kDict) refuse("segments", "(no dict)", "each segment is a dict");
  const auto index = static_cast<std::int32_t>(segments_.device.size());
  segments_.device.push_back(static_cast<std::int32_t>(integer(segment, "device", 0, kMostDevices - 1, 0)));
  segments_.address.push_back(address(segment, "address"));
  segments_.size.push_back(held_bytes(segment, "total_size"));
  segments_.stream.push_back(stream(segment));
  const std::string* type = text(segment, "segment_type");
  segments_.is_small.push_back(type != nullptr && *type == "small");
  segments_.is_expandable.push_back(integer(segment, "is_expandable", 0, 1, 0) != 0);
  segments_.pool.push_back(pool_of(tree_.get(segment, "segment_pool_id")));
  std::uint64_t next = segments_.address.back();
  for (const Value& block : tree_.items(tree_.get(segment, "blocks"))) next = read_block(block, index, next);
}

std::uint64_t SnapshotReader::read_block(Value block, std::int32_t segment, std::uint64_t next) {
  if (block.tag() != Tag::kDict) refuse("blocks", "(no dict)", "each block is a dict");
  if (++num_blocks_ > kMostEvents) refuse("blocks", std::to_string(num_blocks_), "too many");
  const bool has_address = tree_.get(block, "address").tag() != Tag::kNone;
  const std::int64_t size = held_bytes(block, "size");
  const std::string* state = text(block, "state");
  const bool is_allocated = state != nullptr && *state == "active_allocated";
  const bool waits = state != nullptr && (*state == "active_pending_free" || *state == "active_awaiting_free");
  blocks_.segment.push_back(segment);
  blocks_.address.push_back(has_address ? address(block, "address") : next);
  blocks_.size.push_back(size);
  blocks_.requested.push_back(held_bytes(block, "requested_size", size));
  blocks_.state.push_back(is_allocated ? 1 : waits ? 2 : 0);
  blocks_.stack.push_back(stacks_.id_of(frames_of(block)));
  return blocks_.address.back() + static_cast<std::uint64_t>(size);
}

// Until 2.1 a block kept its frames in a history, the latest first.
Value SnapshotReader::frames_of(Value block) const {
  const Value frames = tree_.get(block, "frames");
  if (frames.tag() == Tag::kList) return frames;
  const PickleTree::Items history = tree_.items(tree_.get(block, "history"));
  return history.count == 0 ? Value() : tree_.get(*history.begin(), "frames");
}

std::string SnapshotReader::pool_of(Value id) const {
  std::string name;
  if (tree_.items(id).count > kMostPoolParts) refuse("segment_pool_id", "(too many numbers)", "a pool is named by two");
  for (const Value& part : tree_.items(id)) {
    if (!name.empty()) name += '.';
    name += part.tag() == Tag::kInt ? std::to_string(part.integer()) : "?";
  }
  return name.empty() ? "0.0" : name;
}

}  // namespace stalloc
