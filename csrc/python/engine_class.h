// The engine's Python class, the same in every module that has one.
#pragma once

#include <pybind11/pybind11.h>

namespace stalloc {

void bind_engine_class(pybind11::module_& m);

}  // namespace stalloc
