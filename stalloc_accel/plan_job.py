"""Planning beside the training: threads that build plans, check them against one more step, and resize them."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from stalloc_accel.errors import StallocError, describe
from stalloc_accel.longest_batch import LongestBatch
from stalloc_accel.rehearsal import Rehearsal, rehearse

Plan = dict[str, Any]

JOIN_TIMEOUT_S = 20.0
"""How long the end of a session waits for a planner: far beyond its deadline, so that only one that hangs is left."""

DYNAMIC_STEPS = 5
"""From which steps that differ are planned: what only one of them does is told from what all do."""

_STEPS_FOR_TWO_KINDS = 4  # two of each


_ROOM = 4  # SlotKind::kRoom of csrc/core/plan.h


def is_dynamic(plan: Plan) -> bool:
    """Whether steps differ in number and size, so that the plan keeps room for requests without a slot."""
    return bool((plan["slot_kind"] == _ROOM).any())


def awaits_more_steps(trace: Mapping[str, Any], num_unsettled: int) -> bool:
    """Whether the recorded steps may be of two kinds that come in turn, which the next one would show."""
    is_birth = np.concatenate([[0], np.cumsum(trace["event_size"] > 0)])
    settled = np.diff(is_birth[trace["step_begin"]])[max(num_unsettled, 1):].tolist()
    if not 2 <= len(settled) < _STEPS_FOR_TWO_KINDS or settled[-1] == settled[-2]:
        return False
    return len(settled) == 2 or settled[-1] == settled[-3]


def longest_met(plan: Plan, trace: Mapping[str, Any]) -> list[int]:
    """What the plan's variables must be for the longest batch of the trace; micro-steps, equal in the plan, share theirs."""
    from stalloc_accel import _core
    planned = plan["variable_bytes"].tolist()
    longest: dict[int, int] = {}
    for value, met in zip(planned, _core.met_variables(plan, trace), strict=True):
        longest[value] = max(longest.get(value, value), met)
    return [longest[value] for value in planned]


class PlanJob(threading.Thread):
    """Plans the steps that the engine has recorded, then waits for one more and compares.

    When it has ended, either `error` is set, or all of: `lasting` (the plan from the first event on, for the store),
    `current` (the plan for a run that is under way), `agreement` (the share of the extra step's requests that the plan
    foretells, in [0, 1]), `seconds` (of planning), `num_planned` (steps that the plan was made from). Where it was rehearsed it
    also tells what it makes of recorded steps: `rehearsal` of `current`, and with dynamic requests, or where that one takes more
    than none would, `lasting_rehearsal` of `lasting`.
    `needed_bytes` is the arena for `current` and the batches met; `current` itself has room for `longest_batch`, unless
    `lacks_room` says that this was too much.
    Only `is_premature` is set where the steps differ and are too few for such a plan.
    """

    def __init__(self, engine: Any, *, deadline_s: float, num_unsettled: int, lasting: Plan | None = None,
                 shares_spaces: bool = False, longest_batch: LongestBatch | None = None,
                 most_bytes: int | None = None, is_rehearsed: bool = False) -> None:
        """`num_unsettled`: first steps that repeat nothing; none of them is compared.
        `lasting`: a plan out of the store, of which only the part for this run is to be made.
        `shares_spaces`: streams may reuse each other's memory.
        `longest_batch`: what to make room for beside the batches met, where no arena needs more than `most_bytes` for it.
        `is_rehearsed`: a plan without dynamic requests is rehearsed too."""
        super().__init__(name="stalloc-planner", daemon=True)
        self._engine = engine
        self._deadline_s = deadline_s
        self._num_unsettled = num_unsettled
        self._shares_spaces = shares_spaces
        self._longest_batch = longest_batch
        self._most_bytes = most_bytes
        self._is_rehearsed = is_rehearsed
        self._is_stored = lasting is not None
        self._step_ended = threading.Event()
        self._is_at_rest = threading.Event()  # waits for a step, or has ended
        self._resting = threading.Lock()  # a step that ends meanwhile is not slept through
        self.has_ended = False
        self._cancelled = False
        self.lasting = lasting
        self.current: Plan | None = None
        self.agreement = 0.0
        self.seconds = 0.0
        self.num_events = 0
        self.num_planned = 0
        self.needed_bytes = 0
        self.lacks_room = False
        self.is_premature = False
        self.rehearsal: Rehearsal | None = None
        self.lasting_rehearsal: Rehearsal | None = None
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            self._plan()
        except Exception as error:  # noqa: BLE001 - carried to the session, which decides
            self.error = error
        finally:
            self.has_ended = True
            self._is_at_rest.set()

    def step_ended(self) -> None:
        """Tells the thread that the engine has recorded another step. Never blocks."""
        with self._resting:
            self._is_at_rest.clear()
            self._step_ended.set()

    def wait(self, timeout_s: float) -> bool:
        """Waits until it has ended, but not while it waits for a step itself: where it began late, it may have planned from
        the step that it was to be checked against. Returns whether it has ended."""
        if not self.has_ended:
            self._is_at_rest.wait(timeout_s)
        return self.has_ended

    def cancel(self) -> None:
        self._cancelled = True
        self._step_ended.set()

    def plan_step(self, num_steps: int) -> int:
        """Where the plan for this run stands after `num_steps` steps of it: steps of several kinds come in turn."""
        return (num_steps - self.lasting["num_prologue"]) % self.current["num_period"]

    def _plan(self) -> None:
        from stalloc_accel import _core
        trace = self._engine.recorded()
        self.num_planned = len(trace["step_begin"]) - 1
        began = time.perf_counter()
        if self.lasting is None:
            self.lasting = _core.build_plan(trace, True, self._deadline_s, shares_spaces=self._shares_spaces)
        self.is_premature = self.num_planned < DYNAMIC_STEPS and not self._is_stored and is_dynamic(self.lasting)
        if self.is_premature:
            return
        self.current = _core.without_prologue(self.lasting, self._deadline_s)
        self.seconds = time.perf_counter() - began
        self._check(max(self.num_planned, self._num_unsettled))

    def _check(self, num_planned: int) -> None:
        from stalloc_accel import _core
        while True:
            self._step_ended.clear()
            trace = self._engine.recorded()
            num_steps = len(trace["step_begin"]) - 1
            if num_steps > num_planned:
                break
            if self._cancelled or self._engine.recording_overflowed():
                raise StallocError(describe("checking the plan", "num_steps", num_steps,
                                            "no step was recorded after planning", "Nothing to do."))
            with self._resting:
                if not self._step_ended.is_set():
                    self._is_at_rest.set()
            self._step_ended.wait()
        self.num_events = len(trace["event_size"])
        self.agreement = _core.agreement(self.current, self.plan_step(num_steps - 1), trace, num_steps - 1)
        self._fit_longest(trace)
        if self._is_rehearsed or is_dynamic(self.current):
            self._rehearse(trace, num_steps)

    def _fit_longest(self, trace: Mapping[str, Any]) -> None:
        """The step that came after planning, or one that was not planned from, may have had the longest batch."""
        longest = longest_met(self.lasting, trace)
        self.current = self._fitted(self.current, longest)
        self.needed_bytes = int(self.current["arena_bytes"].sum())
        if not self._is_stored:
            self.lasting = self._fitted(self.lasting, longest)
        if self._longest_batch is not None and not is_dynamic(self.current):
            self._make_room(self._longest_batch.variable_bytes(self.current, longest))

    def _make_room(self, variable_bytes: list[int]) -> None:
        """For batches that may never come. A program may say more than its device holds; then those met have to do."""
        try:
            current = self._fitted(self.current, variable_bytes)
            lasting = self.lasting if self._is_stored else self._fitted(self.lasting, variable_bytes)
        except ValueError:  # more than any plan may have
            self.lacks_room = True
            return
        needed = max(int(plan["arena_bytes"].sum()) for plan in (current, lasting))
        self.lacks_room = self._most_bytes is not None and needed > self._most_bytes
        if not self.lacks_room:
            self.current, self.lasting = current, lasting

    def _fitted(self, plan: Plan, variable_bytes: list[int]) -> Plan:
        from stalloc_accel import _core
        if variable_bytes == plan["variable_bytes"].tolist():
            return plan
        return _core.resized(plan, variable_bytes, self._deadline_s)

    def _rehearse(self, trace: Mapping[str, Any], num_steps: int) -> None:
        """On all recorded steps, of which the last was not there when the plan was made.

        This run may meet longer batches. The next one knows those of this run, and begins with room for them.
        """
        first_step = min(max(self._num_unsettled, 1), num_steps - 1)
        if not is_dynamic(self.current):
            # Only how the plan does once it is taken: what earlier steps leave behind is known then.
            first_step = max(first_step, num_steps - 2)
        self.rehearsal = rehearse(trace, self.current, first_step=first_step, plan_step=self.plan_step(first_step),
                                  shares_spaces=self._shares_spaces, may_grow=is_dynamic(self.current))
        if is_dynamic(self.current) or (self.rehearsal.needs_more and not self._is_stored):
            self.lasting_rehearsal = rehearse(trace, self.lasting, shares_spaces=self._shares_spaces)


class ResizeJob(threading.Thread):
    """Places the store's plan anew: for batches that turned out longer than the plan's, or only to place it better.

    When it has ended, either `error` is set, or `lasting` is the new plan.
    """

    def __init__(self, *, lasting: Plan, deadline_s: float, variable_bytes: list[int] | None = None,
                 trace: Mapping[str, Any] | None = None) -> None:
        """`variable_bytes`: what it is placed for; left out, the longest batches of `trace` (Engine.recorded()) tell."""
        super().__init__(name="stalloc-planner", daemon=True)
        self.lasting = lasting
        self.variable_bytes = variable_bytes
        self.error: Exception | None = None
        self._trace = trace
        self._deadline_s = deadline_s

    def run(self) -> None:
        from stalloc_accel import _core
        try:
            if self.variable_bytes is None:
                self.variable_bytes = longest_met(self.lasting, self._trace)
                if self.variable_bytes == self.lasting["variable_bytes"].tolist():
                    return
            self.lasting = _core.resized(self.lasting, self.variable_bytes, self._deadline_s)
        except Exception as error:  # noqa: BLE001 - carried to the session, which decides
            self.error = error
