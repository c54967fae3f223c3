// stalloc_accel._core: planner, engine and simulation for Python, without torch.
#include "python/bindings.h"

PYBIND11_MODULE(_core, m) {
  m.doc() = "Planner, engine and simulated upstreams of stalloc-accel.";
}
