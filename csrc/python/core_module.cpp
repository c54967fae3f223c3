// stalloc_accel._core: planner, engine and simulation for Python, without torch.
#include "python/bindings.h"
#include "python/plan_arrays.h"

PYBIND11_MODULE(_core, m) {
  stalloc::register_errors();
  m.doc() = "Planner, engine and simulated upstreams of stalloc-accel.";
  stalloc::bind_planner(m);
  stalloc::bind_engine(m);
  stalloc::bind_simulation(m);
}
