// _core.place and _core.find_violation over numpy arrays.
#include <cstddef>
#include <string>
#include <vector>

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include "core/planner.h"
#include "core/validator.h"
#include "python/bindings.h"

namespace py = pybind11;

namespace stalloc {
namespace {

using Int64Array = py::array_t<std::int64_t, py::array::c_style>;

void check_column(const char* name, const Int64Array& column, std::size_t num_rows) {
  if (column.ndim() == 1 && static_cast<std::size_t>(column.shape(0)) == num_rows) return;
  throw Error(std::string("read a placement problem: len(") + name + ")=" + std::to_string(column.size()) +
              ", must be one-dimensional and as long as lower (" + std::to_string(num_rows) +
              "). Give one entry a buffer.");
}

std::vector<Buffer> buffers_of(const Int64Array& lower, const Int64Array& upper, const Int64Array& size) {
  const auto num_rows = static_cast<std::size_t>(lower.size());
  check_column("lower", lower, num_rows);
  check_column("upper", upper, num_rows);
  check_column("size", size, num_rows);
  std::vector<Buffer> buffers(num_rows);
  for (std::size_t i = 0; i < num_rows; ++i) buffers[i] = {lower.data()[i], upper.data()[i], size.data()[i]};
  return buffers;
}

// `obstacles` is None or an int64 array of shape (num_obstacles, 4): lower, upper, offset, size.
std::vector<Obstacle> obstacles_of(const py::object& object) {
  if (object.is_none()) return {};
  const auto rows = py::cast<Int64Array>(object);
  if (rows.ndim() != 2 || rows.shape(1) != 4) {
    throw Error("read a placement problem: obstacles.ndim=" + std::to_string(rows.ndim()) +
                ", must be 2 with 4 columns. Give lower, upper, offset and size of each.");
  }
  std::vector<Obstacle> obstacles(static_cast<std::size_t>(rows.shape(0)));
  for (std::size_t i = 0; i < obstacles.size(); ++i) {
    const std::int64_t* row = rows.data() + 4 * i;
    obstacles[i] = {row[0], row[1], row[2], row[3]};
  }
  return obstacles;
}

py::dict place_arrays(const Int64Array& lower, const Int64Array& upper, const Int64Array& size, Bytes alignment,
                      double deadline_s, Bytes capacity, int num_threads, std::uint64_t seed,
                      const py::object& obstacles) {
  const std::vector<Buffer> buffers = buffers_of(lower, upper, size);
  const std::vector<Obstacle> fixed = obstacles_of(obstacles);
  PlannerOptions options;
  options.alignment = alignment;
  options.deadline_s = deadline_s;
  options.capacity = capacity;
  options.num_threads = num_threads;
  options.seed = seed;
  Placement placement;
  {
    py::gil_scoped_release unlocked;
    placement = place(buffers, fixed, options);
  }
  py::dict answer;
  answer["offsets"] = Int64Array(static_cast<py::ssize_t>(placement.offsets.size()), placement.offsets.data());
  answer["peak_bytes"] = placement.peak_bytes;
  answer["lower_bound_bytes"] = placement.lower_bound_bytes;
  answer["proved_bound_bytes"] = placement.proved_bound_bytes;
  answer["optimal"] = placement.optimal;
  answer["elapsed_s"] = placement.elapsed_s;
  answer["method"] = placement.method;
  return answer;
}

std::string find_violation_in_arrays(const Int64Array& lower, const Int64Array& upper, const Int64Array& offset,
                                     const Int64Array& size, Bytes limit_bytes) {
  const auto num_rows = static_cast<std::size_t>(lower.size());
  check_column("lower", lower, num_rows);
  check_column("upper", upper, num_rows);
  check_column("offset", offset, num_rows);
  check_column("size", size, num_rows);
  std::vector<PlacedBuffer> placed(num_rows);
  for (std::size_t i = 0; i < num_rows; ++i) {
    placed[i] = {lower.data()[i], upper.data()[i], offset.data()[i], size.data()[i]};
  }
  py::gil_scoped_release unlocked;
  return find_violation(placed, limit_bytes);
}

}  // namespace

void bind_planner(py::module_& m) {
  m.def("place", &place_arrays, py::arg("lower"), py::arg("upper"), py::arg("size"), py::arg("alignment") = 1,
        py::arg("deadline_s") = 1.0, py::arg("capacity") = 0, py::arg("num_threads") = 1, py::arg("seed") = 7,
        py::arg("obstacles") = py::none(),
        R"(Place buffers with known lifetimes so that the peak address is small.

lower, upper, size: int64[num_buffers], half-open lifetimes in ticks and sizes in bytes.
obstacles: None or int64[num_obstacles, 4], columns lower, upper, offset, size: what is taken.
capacity: bytes; when > 0 the search ends at the first placement that fits below it, or when there is proved to be none.
Returns a dict: offsets (int64[num_buffers]), peak_bytes, lower_bound_bytes (the most that lives at once),
proved_bound_bytes (no placement has a smaller peak), optimal (the peak is that), elapsed_s, method.
Raises ValueError on empty lifetimes, sizes that are not positive, and sums that overflow.)");
  m.def("find_violation", &find_violation_in_arrays, py::arg("lower"), py::arg("upper"), py::arg("offset"),
        py::arg("size"), py::arg("limit_bytes"),
        R"(The first offence of a placement, or "".

Arrays are int64[num_buffers]; a placement is right when no two buffers that live at once share a byte and all
lie in [0, limit_bytes).)");
}

}  // namespace stalloc
