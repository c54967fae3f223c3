"""What a plan would have made of steps that were recorded: the real engine over models of torch's allocators."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

_WORTH = 0.98  # a plan pays where it needs less than this of what the run has without it: serving it takes time too
_SHORTER = 7 / 8  # of the longest batch that was recorded
_PLACEMENT_S = 0.05


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rehearsal:
    """Most bytes reserved in the rehearsed steps: with the plan, and by expandable segments alone."""

    planned_bytes: int
    unplanned_bytes: int

    @property
    def pays(self) -> bool:
        return self.planned_bytes < _WORTH * self.unplanned_bytes

    @property
    def needs_more(self) -> bool:
        return self.planned_bytes > self.unplanned_bytes

    @property
    def costs(self) -> bool:
        """It needs more, by as much as makes a plan pay that needs less."""
        return _WORTH * self.planned_bytes > self.unplanned_bytes


def rehearse(recorded: Mapping[str, Any], plan: Mapping[str, Any], *, first_step: int = 0, plan_step: int = 0,
             shares_spaces: bool = False, may_grow: bool = False) -> Rehearsal:
    """Replays `recorded` (Engine.recorded()) and serves `plan` from its step `first_step` on, which is the plan's `plan_step`.

    Before that, and where there is no plan, expandable segments serve. Step 0 begins with the first event. That a block
    waits for other streams is not rehearsed: its bytes are taken to come back at its free. `may_grow`: batches to come may be
    longer than all that were recorded, so it is also tried what becomes of a plan for shorter ones that has to grow; the
    worse of the two counts. Takes about 10 us a request, most of it without the interpreter's lock.
    """
    from stalloc_accel import _core
    from stalloc_accel.trace import replay_trace
    trace = replay_trace(recorded)
    spans = slice(0 if first_step == 0 else 1 + first_step, None)
    plans = [plan]
    if may_grow and len(plan["variable_bytes"]):
        plans.append(_core.resized(plan, [int(value * _SHORTER) for value in plan["variable_bytes"].tolist()], _PLACEMENT_S))
    planned = [_spans_with_plan(trace, one, first_step, plan_step, shares_spaces)[spans].max() for one in plans]
    unplanned = _core.replay(trace, "expandable", {})["span_reserved_peak"][spans].max()
    return Rehearsal(planned_bytes=int(max(planned)), unplanned_bytes=int(unplanned))


def _spans_with_plan(trace: Any, plan: Mapping[str, Any], first_step: int, plan_step: int, shares_spaces: bool) -> np.ndarray:
    from stalloc_accel import _core
    run = _core.SimulatedRun(trace, {"handover_audited": shares_spaces})
    run.engine.set_handover(shares_spaces)
    run.engine.start_recording(trace.num_events)  # numbers the streams in the order in which they ask, before the plan too
    run.use_expandable_segments(True)
    step_begin = trace.step_begin.tolist()
    for step, end in enumerate([*step_begin[1:], trace.num_events]):
        if step == first_step:
            run.use_expandable_segments(False)
            run.empty_cache()
            run.engine.arm(plan, plan_step)
        run.advance(end)
        if step + 1 < len(step_begin):
            run.engine.end_step()
    return run.finish()["span_reserved_peak"]
