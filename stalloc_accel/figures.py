"""The figures of a session: what was served, what fell back and why, and what it saved."""

from __future__ import annotations

import json
import os
import platform
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stalloc_accel.memory import DeviceMemory, Peaks

if TYPE_CHECKING:
    from stalloc_accel.session import Session

_COUNTERS = ("requests", "slot_hits", "gap_hits", "planned_requests", "requested_bytes", "slot_hit_bytes",
             "gap_hit_bytes")


class Figures:
    """Reads the engine's counters and the device's peaks at step boundaries; all counts begin at activation."""

    def __init__(self, session: Session, engine: Any, memory: DeviceMemory) -> None:
        self._session = session
        self._engine = engine
        self._memory = memory
        self._peaks = Peaks(allocated_bytes=None, reserved_bytes=None)
        self._before = Peaks(allocated_bytes=None, reserved_bytes=None)  # up to activation
        self._base = engine.stats()
        self._last = self._base
        self._step = self._base
        self._plan_seconds: float | None = None
        self._is_active = False

    def activated(self, plan_seconds: float | None = None) -> None:
        """Counts from here on."""
        self._before = self._peaks.max(self._memory.peaks())
        self._plan_seconds = plan_seconds
        self._base = self._last = self._step = self._engine.stats()
        self._is_active = True
        self._memory.start_window()

    def step_ended(self) -> None:
        # Sampled at every boundary, so that a program that resets its peaks hides at most one step.
        self._peaks = self._peaks.max(self._memory.peaks())
        if self._is_active:
            self._memory.sample_window()
        self._last, self._step = self._engine.stats(), self._last

    def last_step_hit_rate(self, *, with_gaps: bool) -> float | None:
        """The share of the last step's requests that were served from their slots, or from free space too; None where
        it made none.

        What it made beyond a step of the plan, as an evaluation does, was not to be had from slots and does not count.
        """
        requests = min(self._last["requests"] - self._step["requests"], self._requests_a_step())
        served = self._last["slot_hits"] - self._step["slot_hits"]
        if with_gaps:
            served += self._last["gap_hits"] - self._step["gap_hits"]
        return served / requests if requests else None

    def _requests_a_step(self) -> int:
        plan = self._session.served_plan
        first = plan["num_prologue"] * plan["num_roles"]  # of the cells, one a table and role
        return -(-int(plan["table_begin"][-1] - plan["table_begin"][first]) // plan["num_period"])

    def collect(self) -> dict[str, Any]:
        """The summary as JSON values. Bytes are as the allocator counts them; rates lie in [0, 1]."""
        session = self._session
        now = self._engine.stats()
        counts = {name: now[name] - self._base[name] for name in _COUNTERS}
        fallbacks = {reason: count - self._base["fallbacks"][reason] for reason, count in now["fallbacks"].items()}
        whole = self._peaks.max(self._memory.peaks())
        return {
            "state": session.state.value,
            "reason": session.reason,
            "key": session.key.digest if session.key is not None else None,
            "from_cache": session.from_cache,
            "activated_at_step": session.activated_at_step,
            "steps": session.num_steps,
            "rank": session.rank,
            "backend": self._memory.backend,
            "plan": self._plan_figures(),
            **_peak_figures(whole),
            "before": _peak_figures(self._before) if self._is_active else None,
            "steady": _peak_figures(self._memory.window_peaks()) if self._is_active else None,
            "hit_rate": _ratio(counts["slot_hits"], counts["requests"]),
            "hit_rate_bytes": _ratio(counts["slot_hit_bytes"], counts["requested_bytes"]),
            "hit_rate_planned": _ratio(counts["slot_hits"], counts["planned_requests"]),
            **counts,
            "fallbacks": {reason: count for reason, count in fallbacks.items() if count},
            "versions": _versions(),
        }

    def _plan_figures(self) -> dict[str, Any] | None:
        plan = self._session.served_plan
        if plan is None:
            return None
        return {
            "slots": int((plan["slot_kind"] < 3).sum()),
            "arena_bytes": int(plan["arena_bytes"].sum()),
            "lower_bound_bytes": int(plan["lower_bound_bytes"].sum()),
            "seconds": self._plan_seconds,
        }

    @staticmethod
    def write(path: Path, figures: dict[str, Any]) -> None:
        """Writes the figures whole or not at all. Raises OSError."""
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name)
        with os.fdopen(handle, "w") as file:
            json.dump(figures, file, indent=1)
        os.replace(temporary, path)


def _peak_figures(peaks: Peaks) -> dict[str, Any]:
    return {"allocated_peak_bytes": peaks.allocated_bytes, "reserved_peak_bytes": peaks.reserved_bytes,
            "efficiency": peaks.efficiency}


def _ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _versions() -> dict[str, str]:
    import sys

    import stalloc_accel
    versions = {"stalloc_accel": stalloc_accel.__version__, "python": platform.python_version()}
    for name in ("torch", "accelerate", "transformers", "deepspeed"):
        module = sys.modules.get(name)  # what is not loaded has no part in the run
        version = getattr(module, "__version__", None)
        if version is not None:
            versions[name] = str(version)
    return versions
