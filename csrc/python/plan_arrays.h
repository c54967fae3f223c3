// Plans and traces as dicts of numpy arrays: how they travel between the extension modules and the plan store.
#pragma once

#include <pybind11/pybind11.h>

#include "core/plan.h"
#include "core/trace.h"

namespace stalloc {

pybind11::dict to_dict(const Plan& plan);
pybind11::dict to_dict(const Trace& trace);
// Throw Error on a missing key, a wrong shape or a value that does not fit. plan_from does not check the plan
// itself: check_plan does.
Plan plan_from(const pybind11::dict& arrays);
Trace trace_from(const pybind11::dict& arrays);

// Error becomes ValueError in Python. Call once in each module.
void register_errors();

}  // namespace stalloc
