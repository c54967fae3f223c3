// The parts of the module stalloc_accel._core, each defined in a file of its own.
#pragma once

#include <pybind11/pybind11.h>

namespace stalloc {

void bind_planner(pybind11::module_& m);     // planner_bindings.cpp
void bind_engine(pybind11::module_& m);      // engine_bindings.cpp
void bind_simulation(pybind11::module_& m);  // simulation_bindings.cpp

}  // namespace stalloc
