#include "python/plan_arrays.h"

#include <pybind11/numpy.h>

#include <string>

namespace py = pybind11;

namespace stalloc {
namespace {

template <typename T>
py::array_t<T> array_of(const std::vector<T>& values) {
  return py::array_t<T>(static_cast<py::ssize_t>(values.size()), values.data());
}

template <typename T, typename Item, typename Get>
py::array_t<T> column_of(const std::vector<Item>& items, Get get) {
  py::array_t<T> column(static_cast<py::ssize_t>(items.size()));
  T* out = column.mutable_data();
  for (std::size_t i = 0; i < items.size(); ++i) out[i] = static_cast<T>(get(items[i]));
  return column;
}

py::object entry(const py::dict& arrays, const char* key) {
  if (!arrays.contains(key))
    throw Error(std::string("Reading arrays failed: key=") + key + ", is missing. Make the file anew.");
  return arrays[key];
}

// A one-dimensional array of T, converted only where no value can change.
template <typename T>
std::vector<T> vector_of(const py::dict& arrays, const char* key) {
  using Array = py::array_t<T, py::array::c_style>;
  const py::object value = entry(arrays, key);
  if (!py::isinstance<Array>(value) || Array::ensure(value).ndim() != 1)
    throw Error(std::string("Reading arrays failed: key=") + key + ", must be a one-dimensional array of " +
                py::str(py::dtype::of<T>()).cast<std::string>() + ". Make the file anew.");
  const auto array = Array::ensure(value);
  return std::vector<T>(array.data(), array.data() + array.size());
}

template <typename T>
T number_of(const py::dict& arrays, const char* key) {
  try {
    return entry(arrays, key).cast<T>();
  } catch (const py::cast_error&) {
    throw Error(std::string("Reading arrays failed: key=") + key + ", must be an integer in range. Make the file anew.");
  }
}

void require_length(const char* key, std::size_t length, std::size_t expected) {
  if (length != expected)
    throw Error(std::string("Reading arrays failed: len(") + key + ")=" + std::to_string(length) + ", must be " +
                std::to_string(expected) + ". Make the file anew.");
}

}  // namespace

py::dict to_dict(const Plan& plan) {
  py::dict arrays;
  arrays["num_roles"] = plan.num_roles;
  arrays["num_prologue"] = plan.num_prologue;
  arrays["num_period"] = plan.num_period;
  arrays["window_begin"] = plan.window_begin;
  arrays["window_end"] = plan.window_end;
  arrays["slot_size"] = column_of<Bytes>(plan.slots, [](const Slot& slot) { return slot.size; });
  arrays["slot_offset"] = column_of<Bytes>(plan.slots, [](const Slot& slot) { return slot.offset; });
  arrays["slot_birth"] = column_of<Tick>(plan.slots, [](const Slot& slot) { return slot.birth; });
  arrays["slot_death"] = column_of<Tick>(plan.slots, [](const Slot& slot) { return slot.death; });
  arrays["slot_role"] = column_of<RoleIndex>(plan.slots, [](const Slot& slot) { return slot.role; });
  arrays["slot_kind"] = column_of<std::uint8_t>(plan.slots, [](const Slot& slot) { return slot.kind; });
  arrays["slot_base"] = column_of<double>(plan.slots, [](const Slot& slot) { return slot.model.base; });
  arrays["slot_slope"] = column_of<double>(plan.slots, [](const Slot& slot) { return slot.model.slope; });
  arrays["slot_variable"] = column_of<std::int32_t>(plan.slots, [](const Slot& slot) { return slot.model.variable; });
  arrays["slot_defines"] = column_of<std::uint8_t>(plan.slots, [](const Slot& slot) { return slot.model.defines; });
  arrays["variable_bytes"] = array_of(plan.variable_bytes);
  arrays["table_slots"] = array_of(plan.table_slots);
  arrays["table_begin"] = array_of(plan.table_begin);
  arrays["role_space"] = array_of(plan.role_space);
  arrays["arena_bytes"] = array_of(plan.arena_bytes);
  arrays["lower_bound_bytes"] = array_of(plan.lower_bound_bytes);
  return arrays;
}

Plan plan_from(const py::dict& arrays) {
  Plan plan;
  plan.num_roles = number_of<RoleIndex>(arrays, "num_roles");
  plan.num_prologue = number_of<std::int32_t>(arrays, "num_prologue");
  plan.num_period = number_of<std::int32_t>(arrays, "num_period");
  plan.window_begin = number_of<Tick>(arrays, "window_begin");
  plan.window_end = number_of<Tick>(arrays, "window_end");
  const auto sizes = vector_of<Bytes>(arrays, "slot_size");
  const auto offsets = vector_of<Bytes>(arrays, "slot_offset");
  const auto births = vector_of<Tick>(arrays, "slot_birth");
  const auto deaths = vector_of<Tick>(arrays, "slot_death");
  const auto roles = vector_of<RoleIndex>(arrays, "slot_role");
  const auto kinds = vector_of<std::uint8_t>(arrays, "slot_kind");
  const auto bases = vector_of<double>(arrays, "slot_base");
  const auto slopes = vector_of<double>(arrays, "slot_slope");
  const auto variables = vector_of<std::int32_t>(arrays, "slot_variable");
  const auto defines = vector_of<std::uint8_t>(arrays, "slot_defines");
  require_length("slot_base", bases.size(), sizes.size());
  require_length("slot_slope", slopes.size(), sizes.size());
  require_length("slot_variable", variables.size(), sizes.size());
  require_length("slot_defines", defines.size(), sizes.size());
  require_length("slot_offset", offsets.size(), sizes.size());
  require_length("slot_birth", births.size(), sizes.size());
  require_length("slot_death", deaths.size(), sizes.size());
  require_length("slot_role", roles.size(), sizes.size());
  require_length("slot_kind", kinds.size(), sizes.size());
  plan.slots.reserve(sizes.size());
  for (std::size_t i = 0; i < sizes.size(); ++i)
    plan.slots.push_back({sizes[i], offsets[i], births[i], deaths[i], roles[i], static_cast<SlotKind>(kinds[i]),
                          {bases[i], slopes[i], variables[i], defines[i] != 0}});
  plan.variable_bytes = vector_of<Bytes>(arrays, "variable_bytes");
  plan.table_slots = vector_of<std::int32_t>(arrays, "table_slots");
  plan.table_begin = vector_of<std::int64_t>(arrays, "table_begin");
  plan.role_space = vector_of<RoleIndex>(arrays, "role_space");
  plan.arena_bytes = vector_of<Bytes>(arrays, "arena_bytes");
  plan.lower_bound_bytes = vector_of<Bytes>(arrays, "lower_bound_bytes");
  return plan;
}

py::dict to_dict(const Trace& trace) {
  py::dict arrays;
  arrays["event_address"] = column_of<std::uint64_t>(trace.events, [](const Event& event) { return event.address; });
  arrays["event_size"] = column_of<Bytes>(trace.events, [](const Event& event) { return event.size; });
  arrays["event_role"] = column_of<RoleIndex>(trace.events, [](const Event& event) { return event.role; });
  arrays["step_begin"] = array_of(trace.step_begin);
  arrays["num_roles"] = trace.num_roles;
  return arrays;
}

Trace trace_from(const py::dict& arrays) {
  Trace trace;
  const auto addresses = vector_of<std::uint64_t>(arrays, "event_address");
  const auto sizes = vector_of<Bytes>(arrays, "event_size");
  const auto roles = vector_of<RoleIndex>(arrays, "event_role");
  require_length("event_size", sizes.size(), addresses.size());
  require_length("event_role", roles.size(), addresses.size());
  trace.events.reserve(sizes.size());
  for (std::size_t i = 0; i < sizes.size(); ++i) trace.events.push_back({addresses[i], sizes[i], roles[i], 0});
  trace.step_begin = vector_of<std::int64_t>(arrays, "step_begin");
  trace.num_roles = number_of<RoleIndex>(arrays, "num_roles");
  return trace;
}

void register_errors() {
  py::register_local_exception_translator([](std::exception_ptr error) {
    try {
      if (error) std::rethrow_exception(error);
    } catch (const Error& refused) {
      PyErr_SetString(PyExc_ValueError, refused.what());
    }
  });
}

}  // namespace stalloc
