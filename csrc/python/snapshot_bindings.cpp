// _core.read_snapshot: a torch memory snapshot as columns, read without running anything that is in it.
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "core/pickle_tree.h"
#include "core/snapshot_reader.h"
#include "core/types.h"
#include "python/bindings.h"

namespace py = pybind11;

namespace stalloc {
namespace {

// The array takes the vector over: columns are large, and a copy would be one too many.
template <typename T>
py::array_t<T> to_column(std::vector<T> values) {
  auto* kept = new std::vector<T>(std::move(values));
  const py::capsule owner(kept, [](void* vector) { delete static_cast<std::vector<T>*>(vector); });
  return py::array_t<T>(static_cast<py::ssize_t>(kept->size()), kept->data(), owner);
}

// Any bytes may stand in a file; what is no UTF-8 is replaced.
py::str to_str(const std::string* text) {
  if (text == nullptr) return py::str("?");
  PyObject* decoded = PyUnicode_DecodeUTF8(text->data(), static_cast<Py_ssize_t>(text->size()), "replace");
  if (decoded == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::str>(decoded);
}

void write_stacks(const SnapshotStacks& stacks, py::dict& out) {
  py::list frames;
  for (const auto& frame : stacks.frames())
    frames.append(py::make_tuple(to_str(frame.file), frame.line, to_str(frame.function)));
  out["frames"] = frames;
  out["stack_begin"] = to_column(stacks.stack_begin());
  out["stack_frames"] = to_column(stacks.stack_frames());
}

// Empties the reader.
py::dict to_dict(SnapshotReader& reader) {
  py::dict out;
  py::list devices;
  for (SnapshotEvents& events : reader.devices()) {
    using namespace pybind11::literals;
    devices.append(py::dict("action"_a = to_column(std::move(events.action)), "address"_a = to_column(std::move(events.address)),
                            "size"_a = to_column(std::move(events.size)), "stream"_a = to_column(std::move(events.stream)),
                            "time_us"_a = to_column(std::move(events.time_us)), "stack"_a = to_column(std::move(events.stack))));
  }
  out["devices"] = devices;
  SnapshotSegments& segments = reader.segments();
  SnapshotBlocks& blocks = reader.blocks();
  out["segment_device"] = to_column(std::move(segments.device));
  out["segment_address"] = to_column(std::move(segments.address));
  out["segment_size"] = to_column(std::move(segments.size));
  out["segment_stream"] = to_column(std::move(segments.stream));
  out["segment_is_small"] = to_column(std::move(segments.is_small));
  out["segment_is_expandable"] = to_column(std::move(segments.is_expandable));
  out["segment_pool"] = segments.pool;
  out["block_segment"] = to_column(std::move(blocks.segment));
  out["block_address"] = to_column(std::move(blocks.address));
  out["block_size"] = to_column(std::move(blocks.size));
  out["block_requested"] = to_column(std::move(blocks.requested));
  out["block_state"] = to_column(std::move(blocks.state));
  out["block_stack"] = to_column(std::move(blocks.stack));
  write_stacks(reader.stacks(), out);
  return out;
}

// `read(n)` returns at most n bytes, none at the end.
py::dict read_snapshot(const py::function& read) {
  const PickleTree tree([&read](char* buffer, std::size_t capacity) {
    const py::bytes chunk = read(capacity);
    const std::string_view view = chunk;
    if (view.size() > capacity) {
      throw Error("reading a snapshot: read=" + std::to_string(view.size()) +
                  ", must return at most what was asked for. Give a function like file.read.");
    }
    view.copy(buffer, view.size());
    return view.size();
  });
  SnapshotReader reader(tree);
  reader.read();
  return to_dict(reader);
}

}  // namespace

void bind_snapshot(py::module_& m) {
  m.def("read_snapshot", &read_snapshot, py::arg("read"),
        "Columns of a torch memory snapshot, from a function that returns its bytes. Raises ValueError.");
}

}  // namespace stalloc
