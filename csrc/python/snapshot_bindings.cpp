// _core.read_snapshot: a torch memory snapshot as columns, read without running anything that is in it.
#include <cstdint>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "core/pickle_tree.h"
#include "python/bindings.h"

namespace py = pybind11;

namespace stalloc {
namespace {

using Tag = PickleTree::Tag;
using Value = PickleTree::Value;

constexpr std::int64_t kMostBytes = std::int64_t{1} << 50;
constexpr std::size_t kMostEvents = 8'000'000;
constexpr std::size_t kMostDevices = 1024;

// The array takes the vector over: columns are large, and a copy would be one too many.
template <typename T>
py::array_t<T> to_column(std::vector<T> values) {
  auto* kept = new std::vector<T>(std::move(values));
  const py::capsule owner(kept, [](void* vector) { delete static_cast<std::vector<T>*>(vector); });
  return py::array_t<T>(static_cast<py::ssize_t>(kept->size()), kept->data(), owner);
}

[[noreturn]] void refuse(const std::string& name, const std::string& value, const std::string& rule) {
  throw Error("reading a snapshot: " + name + "=" + value + ", " + rule +
              ". Give a file from torch.cuda.memory._dump_snapshot().");
}

// The actions in the order of their codes; from kOther on they move no memory.
const char* const kActions[] = {"alloc",       "free_requested", "free_completed", "segment_alloc", "segment_free",
                                "segment_map", "segment_unmap",  "oom",            "snapshot"};
constexpr std::uint8_t kUnknownAction = 9;

// The call stacks of events and blocks, each kept once.
class Stacks {
 public:
  explicit Stacks(const PickleTree& tree) : tree_(tree) {}

  std::int32_t id_of(Value frames) {
    if (frames.tag() != Tag::kList) return -1;
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

  void write(py::dict& out) const {
    py::list frames;
    for (const Value& frame : frames_) frames.append(describe(frame));
    out["frames"] = frames;
    out["stack_begin"] = to_column(begin_);
    out["stack_frames"] = to_column(frames_of_);
  }

 private:
  struct Hash {
    std::size_t operator()(const std::vector<std::int32_t>& stack) const noexcept {
      std::uint64_t hash = 1469598103934665603u;
      for (const std::int32_t frame : stack) hash = (hash ^ static_cast<std::uint32_t>(frame)) * 1099511628211u;
      return static_cast<std::size_t>(hash ^ (hash >> 32));
    }
  };

  // Torch shares one dict among all events that passed a frame.
  std::int32_t frame_id(Value frame) {
    const auto [it, is_new] = frame_index_.try_emplace(frame.index(), static_cast<std::int32_t>(frames_.size()));
    if (is_new) frames_.push_back(frame);
    return it->second;
  }
  py::tuple describe(Value frame) const {
    const Value line = tree_.get(frame, "line");
    return py::make_tuple(text_of(tree_.get(frame, "filename")), line.tag() == Tag::kInt ? line.integer() : 0,
                          text_of(tree_.get(frame, "name")));
  }
  py::str text_of(Value value) const {
    if (value.tag() != Tag::kText) return py::str("?");
    const std::string& text = tree_.text(value);
    PyObject* decoded = PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace");
    if (decoded == nullptr) throw py::error_already_set();
    return py::reinterpret_steal<py::str>(decoded);
  }

  const PickleTree& tree_;
  std::vector<Value> frames_;
  std::unordered_map<std::size_t, std::int32_t> frame_index_;
  std::unordered_map<std::vector<std::int32_t>, std::int32_t, Hash> index_;
  std::vector<std::int64_t> begin_{0};
  std::vector<std::int32_t> frames_of_;
};

struct Events {
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

struct Segments {
  std::vector<std::int32_t> device;
  std::vector<std::uint64_t> address;
  std::vector<std::int64_t> size;
  std::vector<std::uint64_t> stream;
  std::vector<std::uint8_t> is_small, is_expandable;
  std::vector<std::string> pool;  // "0.0": the default pool
};

struct Blocks {
  std::vector<std::int32_t> segment;
  std::vector<std::uint64_t> address;
  std::vector<std::int64_t> size, requested;
  std::vector<std::uint8_t> state;  // 0 free, 1 allocated, 2 waits for streams
  std::vector<std::int32_t> stack;
};

class SnapshotReader {
 public:
  explicit SnapshotReader(const PickleTree& tree) : tree_(tree), stacks_(tree) {}

  void read() {
    const Value root = tree_.root();
    // torch.cuda.memory_snapshot() is the list of the segments alone.
    const Value segments = root.tag() == Tag::kList ? root : tree_.get(root, "segments");
    const Value traces = tree_.get(root, "device_traces");
    if (segments.tag() != Tag::kList && traces.tag() != Tag::kList) {
      refuse("keys", "(none of ours)", "a snapshot has segments or device_traces");
    }
    for (const Value& segment : tree_.items(segments)) read_segment(segment);
    if (tree_.items(traces).count > kMostDevices) refuse("devices", std::to_string(tree_.items(traces).count), "at most 1024");
    for (const Value& trace : tree_.items(traces)) read_events(trace);
  }

  // Empties the reader.
  py::dict to_dict() {
    py::dict out;
    py::list devices;
    for (Events& events : devices_) {
      using namespace pybind11::literals;
      devices.append(py::dict("action"_a = to_column(std::move(events.action)), "address"_a = to_column(std::move(events.address)),
                              "size"_a = to_column(std::move(events.size)), "stream"_a = to_column(std::move(events.stream)),
                              "time_us"_a = to_column(std::move(events.time_us)), "stack"_a = to_column(std::move(events.stack))));
    }
    out["devices"] = devices;
    out["segment_device"] = to_column(std::move(segments_.device));
    out["segment_address"] = to_column(std::move(segments_.address));
    out["segment_size"] = to_column(std::move(segments_.size));
    out["segment_stream"] = to_column(std::move(segments_.stream));
    out["segment_is_small"] = to_column(std::move(segments_.is_small));
    out["segment_is_expandable"] = to_column(std::move(segments_.is_expandable));
    out["segment_pool"] = segments_.pool;
    out["block_segment"] = to_column(std::move(blocks_.segment));
    out["block_address"] = to_column(std::move(blocks_.address));
    out["block_size"] = to_column(std::move(blocks_.size));
    out["block_requested"] = to_column(std::move(blocks_.requested));
    out["block_state"] = to_column(std::move(blocks_.state));
    out["block_stack"] = to_column(std::move(blocks_.stack));
    stacks_.write(out);
    return out;
  }

 private:
  std::int64_t integer(Value dict, const char* name, std::int64_t least, std::int64_t most, std::int64_t missing) const {
    const Value value = tree_.get(dict, name);
    if (value.tag() == Tag::kNone) return missing;
    if (value.tag() == Tag::kHuge) refuse(name, "(beyond 60 bits)", range(least, most));
    if (value.tag() != Tag::kInt && value.tag() != Tag::kBool) refuse(name, "(no integer)", range(least, most));
    if (value.integer() < least || value.integer() > most) refuse(name, std::to_string(value.integer()), range(least, most));
    return value.integer();
  }
  static std::string range(std::int64_t least, std::int64_t most) {
    return "must be an integer from " + std::to_string(least) + " to " + std::to_string(most);
  }
  std::int64_t bytes(Value dict, const char* name, std::int64_t missing = 0) const {
    return integer(dict, name, 0, kMostBytes, missing);
  }
  std::uint64_t address(Value dict, const char* name) const {
    return static_cast<std::uint64_t>(integer(dict, name, 0, (std::int64_t{1} << 58), 0));
  }
  // A handle: any number is as good as another.
  std::uint64_t stream(Value dict) const {
    const Value value = tree_.get(dict, "stream");
    return value.tag() == Tag::kInt ? static_cast<std::uint64_t>(value.integer()) : 0;
  }
  const std::string* text(Value dict, const char* name) const {
    const Value value = tree_.get(dict, name);
    return value.tag() == Tag::kText ? &tree_.text(value) : nullptr;
  }

  std::uint8_t action_of(Value event) {
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

  void read_events(Value trace) {
    Events events;
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

  void read_segment(Value segment) {
    if (segment.tag() != Tag::kDict) refuse("segments", "(no dict)", "each segment is a dict");
    const auto index = static_cast<std::int32_t>(segments_.device.size());
    segments_.device.push_back(static_cast<std::int32_t>(integer(segment, "device", 0, kMostDevices - 1, 0)));
    segments_.address.push_back(address(segment, "address"));
    segments_.size.push_back(bytes(segment, "total_size"));
    segments_.stream.push_back(stream(segment));
    const std::string* type = text(segment, "segment_type");
    segments_.is_small.push_back(type != nullptr && *type == "small");
    segments_.is_expandable.push_back(integer(segment, "is_expandable", 0, 1, 0) != 0);
    segments_.pool.push_back(pool_of(tree_.get(segment, "segment_pool_id")));
    std::uint64_t next = segments_.address.back();
    for (const Value& block : tree_.items(tree_.get(segment, "blocks"))) next = read_block(block, index, next);
  }

  // Returns where the next block begins: old snapshots give no addresses of blocks.
  std::uint64_t read_block(Value block, std::int32_t segment, std::uint64_t next) {
    if (block.tag() != Tag::kDict) refuse("blocks", "(no dict)", "each block is a dict");
    if (++num_blocks_ > kMostEvents) refuse("blocks", std::to_string(num_blocks_), "too many");
    const bool has_address = tree_.get(block, "address").tag() != Tag::kNone;
    const std::int64_t size = bytes(block, "size");
    const std::string* state = text(block, "state");
    const bool is_allocated = state != nullptr && *state == "active_allocated";
    const bool waits = state != nullptr && (*state == "active_pending_free" || *state == "active_awaiting_free");
    blocks_.segment.push_back(segment);
    blocks_.address.push_back(has_address ? address(block, "address") : next);
    blocks_.size.push_back(size);
    blocks_.requested.push_back(bytes(block, "requested_size", size));
    blocks_.state.push_back(is_allocated ? 1 : waits ? 2 : 0);
    blocks_.stack.push_back(stacks_.id_of(frames_of(block)));
    return blocks_.address.back() + static_cast<std::uint64_t>(size);
  }

  // Until 2.1 a block kept its frames in a history, the latest first.
  Value frames_of(Value block) const {
    const Value frames = tree_.get(block, "frames");
    if (frames.tag() == Tag::kList) return frames;
    const PickleTree::Items history = tree_.items(tree_.get(block, "history"));
    return history.count == 0 ? Value() : tree_.get(*history.begin(), "frames");
  }

  std::string pool_of(Value id) const {
    std::string name;
    for (const Value& part : tree_.items(id)) {
      if (!name.empty()) name += '.';
      name += part.tag() == Tag::kInt ? std::to_string(part.integer()) : "?";
    }
    return name.empty() ? "0.0" : name;
  }

  const PickleTree& tree_;
  Stacks stacks_;
  std::vector<Events> devices_;
  Segments segments_;
  Blocks blocks_;
  std::vector<std::uint8_t> action_of_text_;
  std::size_t num_events_ = 0;
  std::size_t num_blocks_ = 0;
};

// `read(n)` returns at most n bytes, none at the end.
py::dict read_snapshot(const py::function& read) {
  const PickleTree tree([&read](char* buffer, std::size_t capacity) {
    const py::bytes chunk = read(capacity);
    const std::string_view view = chunk;
    if (view.size() > capacity) refuse("read", std::to_string(view.size()), "returned more than was asked for");
    view.copy(buffer, view.size());
    return view.size();
  });
  SnapshotReader reader(tree);
  reader.read();
  return reader.to_dict();
}

}  // namespace

void bind_snapshot(py::module_& m) {
  m.def("read_snapshot", &read_snapshot, py::arg("read"),
        "Columns of a torch memory snapshot, from a function that returns its bytes. Raises ValueError.");
}

}  // namespace stalloc
