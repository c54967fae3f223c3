#include <algorithm>

#include "core/plan_builder.h"
#include "fuzz/program.h"
#include "fuzz/targets.h"

namespace stalloc {

// Records, plans what it recorded, and goes on; the plans are right ones of other moments.
void fuzz_engine(const std::uint8_t* data, std::size_t size) {
  Input input(data, size);
  FuzzProgram program;
  std::vector<std::shared_ptr<const Plan>> plans;
  program.engine().start_recording(4096);
  while (!input.is_empty()) {
    const std::uint8_t act = input.byte();
    if (act >= 6) {
      program.act(input, plans);
    } else if (act == 0 && plans.size() < 4) {
      try {
        PlannerOptions options;
        options.deadline_s = 0;
        Plan plan = build_plan(program.engine().recorded(), options);
        if (input.byte() % 2 == 0) plan = without_prologue(plan, options);
        check_plan(plan);
        plans.push_back(std::make_shared<const Plan>(std::move(plan)));
      } catch (const Error&) {
        // Too few steps.
      }
    } else {
      program.engine().end_step();
    }
    program.check();
  }
}

}  // namespace stalloc
