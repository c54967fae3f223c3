"""Replays a history through the models of torch's allocators and through our own engine and session."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from stalloc_accel import _core
from stalloc_accel.config import StallocConfig
from stalloc_accel.device import Device
from stalloc_accel.errors import StallocError, describe
from stalloc_accel.fingerprint import make_key, version_fields
from stalloc_accel.kept_plans import KeptPlans
from stalloc_accel.memory import Peaks
from stalloc_accel.session import Session

POLICIES = ("native", "expandable", "stalloc")

_STEP_SECONDS = 0.3  # that a replayed step is taken to have lasted


class UnsafeReuseError(StallocError):
    """Our engine gave out bytes that were live or might still be in use. Always a bug of ours."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class AllocatorOptions:
    """The options of PYTORCH_CUDA_ALLOC_CONF that the models know."""

    max_split_size_bytes: int | None = None
    """Larger cached blocks are not split; torch's default is no limit."""

    garbage_collection_threshold: float = 0.0
    """Share of the device's limit above which unused segments go back; 0 is off. Without a limit it does nothing."""

    roundup_power2_divisions: tuple[int, ...] = ()
    """Parts between two powers of two: one number for all sizes, or 16 for sizes from 1 MiB on; empty is off."""

    def to_core(self) -> dict[str, Any]:
        options: dict[str, Any] = {"garbage_collection_threshold": self.garbage_collection_threshold}
        if self.max_split_size_bytes is not None:
            options["max_split_size"] = self.max_split_size_bytes
        divisions = self.roundup_power2_divisions
        if divisions:
            options["roundup_power2_divisions"] = list(divisions) if len(divisions) == 16 else [divisions[0]] * 16
        return options


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReplayFigures:
    """One policy on one history. Spans: 0 lies before the first step, 1 + k is step k, the last lies behind all."""

    policy: str
    step_reserved: np.ndarray  # at the start of each step, and at the end of the last
    step_allocated: np.ndarray
    span_allocated_peak: np.ndarray
    span_reserved_peak: np.ndarray
    rounded_peak_bytes: int  # of the requests rounded to 512 bytes
    flushes: int  # failed requests that emptied the cache and tried again
    died_at_event: int | None
    seconds: float
    activated_at_step: int | None = None
    summary: dict[str, Any] | None = None  # Session.figures(), of our policy
    plan: dict[str, Any] | None = None
    stranded_bytes: int | None = None  # at the end: free bytes of segments that something outside the arena pins

    @property
    def survived(self) -> bool:
        return self.died_at_event is None

    def peaks(self, from_step: int | None = None) -> Peaks:
        """Of the whole history, or from step `from_step` on."""
        first = 0 if from_step is None else 1 + from_step
        return Peaks(allocated_bytes=int(self.span_allocated_peak[first:].max(initial=0)),
                     reserved_bytes=int(self.span_reserved_peak[first:].max(initial=0)))


def replay(trace: Any, policy: str, *, options: AllocatorOptions | None = None, limit_bytes: int = 0,
           config: StallocConfig | None = None, name: str = "", handover_audited: bool = False) -> ReplayFigures:
    """Replays `trace` (a _core.ReplayTrace) under `limit_bytes` (0: none).

    The policy stalloc reads `config`, and keeps and finds its plan under `name` where that names a store.
    Raises UnsafeReuseError where our engine reused bytes before it was safe.
    """
    core_options = (options or AllocatorOptions()).to_core() | {"limit_bytes": limit_bytes}
    began = time.perf_counter()
    if policy in ("native", "expandable"):
        return _figures(policy, _core.replay(trace, policy, core_options), time.perf_counter() - began)
    if policy != "stalloc":
        raise StallocError(describe("replay", "policy", policy, f"must be one of {', '.join(POLICIES)}"))
    run = _core.SimulatedRun(trace, core_options | {"handover_audited": handover_audited})
    ours = ReplaySession(run, config or StallocConfig(cache="off", log_level="error"), name)
    if handover_audited:
        ours.vouch_for_streams()
    with ours as session:
        survived = _drive(run, session, trace.step_begin)
        if run.offence:
            raise UnsafeReuseError(run.offence)
        if survived:
            run.advance(trace.num_events)
        if run.offence:
            raise UnsafeReuseError(run.offence)
        figures = _figures(policy, run.finish(), time.perf_counter() - began)
        return dataclasses.replace(figures, activated_at_step=session.activated_at_step, summary=session.figures(),
                                   plan=session.served_plan, stranded_bytes=run.stranded_bytes)


def _drive(run: Any, session: Session, step_begin: np.ndarray) -> bool:
    """The first mark is where the first step begins, which nobody announces; every other one ends a step."""
    for mark in step_begin[1:]:
        if not run.advance(int(mark)):
            return False
        session.step()
    return True


def _figures(policy: str, result: dict[str, Any], seconds: float) -> ReplayFigures:
    died = result["died_at_event"]
    return ReplayFigures(policy=policy, step_reserved=result["step_reserved"], step_allocated=result["step_allocated"],
                         span_allocated_peak=result["span_allocated_peak"],
                         span_reserved_peak=result["span_reserved_peak"],
                         rounded_peak_bytes=result["rounded_peak_bytes"], flushes=result["flushes"],
                         died_at_event=None if died < 0 else died, seconds=seconds)


class ReplaySession(Session):
    """The real session over a simulated device. It waits for its planner at the boundary: replayed steps take no time."""

    def __init__(self, run: Any, config: StallocConfig, name: str) -> None:
        super().__init__(config)
        self._run = run
        self._name = name
        self._wait_left_s = 3600.0

    def step(self, kind: str = "bare") -> None:
        # The planner's deadline is a step's time, and a replayed step takes none.
        self._step_began = time.perf_counter() - _STEP_SECONDS
        super().step(kind)

    def _open_store(self) -> None:
        launch_key = make_key({"replay.trace": self._name, "session.handover": self.hands_over},
                              version_fields(self._memory.backend))
        self._kept = KeptPlans(self.config, launch_key, is_early=True)

    def _start_job(self, *args: Any, **kwargs: Any) -> None:
        self._engine.was_copied.clear()
        super()._start_job(*args, **kwargs)
        self._engine.was_copied.wait(60.0)  # else the planner might find the step it is to be checked against

    def _take_device(self) -> Device:
        return Device(engine=_WatchedEngine(self._run.engine), memory=SimulatedMemory(self._run), is_early=True)


class _WatchedEngine:
    """The engine, and a flag that tells when the planner's thread has copied the recording."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self.was_copied = threading.Event()

    def recorded(self) -> dict[str, Any]:
        trace = self._engine.recorded()
        self.was_copied.set()
        return trace

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)


class SimulatedMemory:
    """The device of a _core.SimulatedRun. Its windows are the replay's spans, so it keeps no peaks of its own."""

    backend = "cuda"
    device_index = 0

    def __init__(self, run: Any) -> None:
        self._run = run
        self._is_expandable = False

    def peaks(self) -> Peaks:
        return Peaks(allocated_bytes=self._run.allocated_bytes, reserved_bytes=self._run.reserved_bytes)

    def start_window(self) -> None:
        pass

    def sample_window(self) -> None:
        pass

    def window_peaks(self) -> Peaks:
        return self.peaks()

    def reserved_bytes(self) -> int:
        return self._run.reserved_bytes

    def pinned_bytes(self, transient: frozenset[int] = frozenset()) -> int:
        return self._run.pinned_bytes  # the replayed boundaries lie behind the frees of what ends with a step

    def total_bytes(self) -> int:
        return 141 << 30

    def available_bytes(self) -> int:
        return self.total_bytes()

    def has_expandable_segments(self) -> bool:
        return self._is_expandable

    def empty_cache(self) -> None:
        self._run.empty_cache()

    def use_expandable_segments(self, value: bool) -> None:
        self._is_expandable = value
        self._run.use_expandable_segments(value)


_LIMIT_STEP_BYTES = 2 << 20  # the driver's granularity


def least_limit(attempt: Callable[[int], ReplayFigures], unlimited: ReplayFigures) -> dict[str, Any]:
    """The smallest device limit under which `attempt(limit_bytes)` survives, to 2 MiB.

    Survival is taken to be monotone in the limit, which flushes can break by a hair near the edge. `unlimited`: the
    figures without a limit.
    """
    if not unlimited.survived:
        raise StallocError(describe("the least limit", "died_at_event", unlimited.died_at_event, "a request that no limit makes room for"))
    floor = unlimited.rounded_peak_bytes // _LIMIT_STEP_BYTES  # nobody lives below what is asked for
    ceiling = -(-unlimited.peaks().reserved_bytes // _LIMIT_STEP_BYTES) + 1
    best = attempt(ceiling * _LIMIT_STEP_BYTES)
    while not best.survived:  # an activation that the limit put off can cost more than it does without one
        floor, ceiling = ceiling, ceiling + ceiling // 8 + 1
        best = attempt(ceiling * _LIMIT_STEP_BYTES)
    while ceiling - floor > 1:
        middle = (floor + ceiling) // 2
        tried = attempt(middle * _LIMIT_STEP_BYTES)
        if tried.survived:
            ceiling, best = middle, tried
        else:
            floor = middle
    least = ceiling * _LIMIT_STEP_BYTES
    return {"least_bytes": least, "over_allocated_peak": least / max(unlimited.rounded_peak_bytes, 1),
            "flushes": best.flushes}
