"""The one state machine of a process: records the first steps, plans, and serves the rest from the plan.

    off -> recording -> planning -> active
               |            |         |
               +------------+---------+--> passive (torch's own allocator serves; the plan is kept for the next run)

Driven by step boundaries. Whatever goes wrong here leaves the run with torch's own allocator.
"""

from __future__ import annotations

import atexit
import enum
import functools
import os
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from stalloc_accel import environment
from stalloc_accel.announcer import Announcer
from stalloc_accel.config import Source, StallocConfig, merge
from stalloc_accel.errors import BuildError, ConfigError, describe
from stalloc_accel.figures import Figures
from stalloc_accel.memory import CpuMemory, CudaMemory, DeviceMemory
from stalloc_accel.plan_job import Plan, PlanJob, ResizeJob

BOUNDARY_KINDS = ("deepspeed", "trainer", "accelerate", "bare", "optimizer")
"""Who may announce steps, the most trustworthy first ("bare": the loop calls step() itself); see claim_boundary."""

_RECORDED_EVENTS = 1 << 22  # 24 bytes each, touched as they fill
_MIN_AGREEMENT = 0.95  # of a recorded step with the plan
_MIN_HIT_RATE = 0.9  # of the first repeating step with a plan from the store
_MAX_ATTEMPTS = 4  # plans made before we give up
_MAX_BAD_STEPS = 8  # in a row with less than half of the requests served from their slots
_REFINE_S = 4.0  # for placing the next run's plan better, beside the training
_GOOD_RATIO = 1.0005  # of arena to lower bound: no refining
_PLANNER_WAIT_S = 2.0  # in all, at boundaries, where steps are shorter than planning


class State(enum.Enum):
    OFF = "off"
    RECORDING = "recording"
    PLANNING = "planning"
    ACTIVE = "active"
    PASSIVE = "passive"


_Method = TypeVar("_Method", bound=Callable[..., Any])


def _harmless(method: _Method) -> _Method:
    """A method that hooks call: an error of ours turns the session to pass-through and never reaches the host."""

    @functools.wraps(method)
    def guarded(self: Session, *args: Any, **kwargs: Any) -> Any:
        try:
            return method(self, *args, **kwargs)
        except ConfigError:
            raise
        except Exception as error:  # noqa: BLE001
            self._fail(error)
            return None

    return guarded  # type: ignore[return-value]


class Session:
    """Serves one process's training. `with Session(config) as s:` and `s.step()` after each update is all of it."""

    def __init__(self, config: StallocConfig | None = None) -> None:
        self.config = config or StallocConfig()
        self.state = State.OFF
        self.from_cache = False
        self.reason = ""  # why the session is passive
        self.key: Any = None
        self.activated_at_step: int | None = None
        self.num_steps = 0
        self._announcer = Announcer(self.config.log_level)
        self._figures: Figures | None = None
        self._memory: DeviceMemory | None = None
        self._engine: Any = None
        self._store: Any = None
        self._launch_key: Any = None
        self._job: PlanJob | None = None
        self._resize: ResizeJob | None = None
        self._refine: ResizeJob | None = None
        self._plan: Plan | None = None  # the one that is served
        self._lasting: Plan | None = None  # its like in the store, from the first event on
        self._candidate_key: Any = None  # of the plan that was armed before the model was known
        self._unproven = False  # a plan of the store that has not served a repeating step yet
        self._kind: str | None = None
        self._attempts = 0
        self._bad_steps = 0
        self._wait_left_s = _PLANNER_WAIT_S
        self._step_seconds = 0.0
        self._step_began = time.perf_counter()
        self._is_early = False
        self._closed = False
        self._has_failed = False  # an error of ours: told once, and no more is tried

    # --- what hosts and users call ---

    def __enter__(self) -> Session:
        self.claim_boundary("bare")  # before the hook on torch's optimizers can count a step
        self.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    @_harmless
    def start(self) -> None:
        """Takes the allocator in hand and records; finds a plan by the launch key. Warns once where it cannot."""
        global _current
        if _current is not None and _current is not self:
            _current.close()
        _current = self
        if not self.config.enabled or environment.is_disabled():
            return
        if not self._take_allocator():
            return
        self._engine.start_recording(_RECORDED_EVENTS)
        self._figures = Figures(self, self._engine, self._memory)
        self.state = State.RECORDING
        self._open_store()
        if self._store is not None and not self._arm_candidate():
            self._announcer.recording(self.config.skip_steps, self.config.profile_steps)

    @_harmless
    def attach(self, model: Any, *field_maps: Mapping[str, Any]) -> None:
        """Names the model and its parallel configuration: makes the key. The first call wins."""
        if self._engine is None or self.key is not None:
            return
        from stalloc_accel import fingerprint
        fields = [fingerprint.model_fields(model)] if model is not None else []
        self.key = fingerprint.make_key(*fields, *field_maps, fingerprint.version_fields(self._memory.backend))
        if self._candidate_key is not None:
            if self._candidate_key.digest != self.key.digest:
                self._drop("the model or its configuration differs from that of the plan found for this command")
        elif self.state is State.RECORDING and self._store is not None:
            self._use_stored()

    def claim_boundary(self, kind: str) -> None:
        """Says that `kind` (one of BOUNDARY_KINDS) will announce steps. Only the strongest claimant's count."""
        if self._kind is None or BOUNDARY_KINDS.index(kind) < BOUNDARY_KINDS.index(self._kind):
            self._kind = kind

    @_harmless
    def step(self, kind: str = "bare") -> None:
        """The boundary after one update of the parameters."""
        self.claim_boundary(kind)
        if kind != self._kind or self._engine is None or self._closed or self._has_failed:
            return
        self.num_steps = self._engine.end_step()
        now = time.perf_counter()
        self._step_seconds, self._step_began = now - self._step_began, now
        self._figures.step_ended()
        self._keep_refined()
        if self.state is State.RECORDING:
            self._consider_planning()
        elif self.state is State.PLANNING:
            self._consider_activation()
        elif self.state is State.ACTIVE:
            self._watch()

    @_harmless
    def pass_through(self, reason: str = "asked for") -> None:
        """From now on torch's own allocator serves everything; what was served stays valid."""
        if self._engine is not None:
            self._engine.set_serve_gaps(False)
        self._become_passive(reason)

    @_harmless
    def close(self) -> None:
        """Ends the session and reports. Idempotent; also runs at the interpreter's exit."""
        if self._closed:
            return
        self._closed = True
        if self._job is not None:
            self._job.cancel()
        for thread in (self._job, self._resize, self._refine):
            # A thread inside our C++ code when the interpreter goes away would end the process; its deadline is short.
            if thread is not None:
                thread.join()
        self._keep_refined()
        if self._engine is None:
            return
        figures = self.figures()
        self._engine.stop_recording()
        self._announcer.summary(figures, self.reason)
        path = self.config.summary_path(environment.rank())
        if path is not None:
            self._figures.write(path, figures)

    def figures(self) -> dict[str, Any]:
        """What the session did so far, as JSON values; empty while it is off. Keys: docs/figures.md."""
        return self._figures.collect() if self._figures is not None else {}

    @property
    def rank(self) -> int:
        return environment.rank()

    @property
    def served_plan(self) -> Plan | None:
        return self._plan

    def reconfigure(self, config: StallocConfig) -> None:
        """Takes settings that were found later than the first ones."""
        if config == self.config:
            return
        old, self.config = self.config, config
        self._announcer.set_level(config.log_level)
        if not config.enabled:
            self.pass_through("enabled is false")
        elif self.state is State.OFF and not old.enabled:
            self.start()
        elif (config.cache_path(), config.cache) != (old.cache_path(), old.cache) and self._engine is not None:
            self._open_store()

    # --- allocator and store ---

    def _take_allocator(self) -> bool:
        """False, with one warning, where there is no allocator to take: training goes on without us."""
        from stalloc_accel import extension
        backend = self.config.backend if self.config.backend != "auto" else _present_backend()
        try:
            module = extension.load(backend)
            module.install()
        except (BuildError, RuntimeError, ValueError) as error:
            self.reason = str(error)
            self._announcer.warn(str(error))
            return False
        if backend == "cuda":
            import torch
            self._is_early = not torch.cuda.is_initialized()
            index = _cuda_device_index(self._is_early)
            self._engine = module.engine(index)
            self._memory = CudaMemory(index, self._engine)
        else:
            self._is_early = True
            self._engine = module.engine(0)
            self._memory = CpuMemory(self._engine)
        return True

    def _open_store(self) -> None:
        from stalloc_accel import fingerprint
        from stalloc_accel.plan_store import PlanStore
        self._store = PlanStore(self.config.cache_path(), self.config.cache)
        self._launch_key = fingerprint.launch_key(self.config, self._memory.backend)

    def _arm_candidate(self) -> bool:
        """Before the model exists: the plan that the same command left behind, if there is one."""
        found = self._store.candidate(self._launch_key)
        if found is None or found[1].facts.get("early") != self._is_early or not self._fits(found[1].plan):
            return False
        self._candidate_key, stored = found
        self._arm(stored)
        return True

    def _use_stored(self) -> None:
        """The plan of the model's key, made by another command: what it has for a run that is under way."""
        stored = self._store.get(self.key)
        if stored is None or not self._fits(stored.plan):
            return
        self.from_cache = True
        self._start_job(lasting=stored.plan)

    def _arm(self, stored: Any) -> None:
        self._engine.arm(stored.plan, 0)
        self._plan = self._lasting = stored.plan
        self.from_cache = self._unproven = True
        self.state = State.ACTIVE
        self.activated_at_step = 0
        self._memory.empty_cache()
        self._figures.activated()
        self._announcer.active_from_store(stored.plan, stored.facts)

    def _fits(self, plan: Plan) -> bool:
        total = self._memory.total_bytes() if isinstance(self.config.max_arena, float) else 0
        limit = self.config.max_arena_bytes(total or 0)
        return limit is None or int(plan["arena_bytes"].sum()) <= limit

    # --- the state machine ---

    def _consider_planning(self) -> None:
        if self._engine.recording_overflowed():
            self._become_passive(f"a step makes more than {_RECORDED_EVENTS} allocations and frees")
        elif self.num_steps >= self.config.skip_steps + max(self.config.profile_steps, 2):
            self._start_job()

    def _start_job(self, lasting: Plan | None = None) -> None:
        self._attempts += 1
        deadline_s = min(max(self._step_seconds, 0.2), 5.0)
        self._job = PlanJob(self._engine, deadline_s=deadline_s, num_unsettled=self.config.skip_steps, lasting=lasting)
        self._job.start()
        self.state = State.PLANNING

    def _consider_activation(self) -> None:
        job = self._job
        job.step_ended()
        if not self._has_ended(job):
            return
        self._job = None
        if job.error is not None:
            self._become_passive(f"planning failed: {job.error}")
        elif job.agreement < _MIN_AGREEMENT:
            self._retry(job)
        else:
            self._lasting = job.lasting
            if not self.from_cache:
                self._keep({"num_events": job.num_events, "plan_seconds": round(job.seconds, 4)})
                self._start_refining()
            self._activate(job)

    def _has_ended(self, thread: PlanJob | ResizeJob) -> bool:
        """Waits a little where steps are shorter than planning, in all no more than _PLANNER_WAIT_S a run."""
        began = time.perf_counter()
        thread.join(max(self._wait_left_s, 0.0))
        self._wait_left_s -= time.perf_counter() - began
        return not thread.is_alive()

    def _retry(self, job: PlanJob) -> None:
        self.from_cache = False
        if self._attempts < _MAX_ATTEMPTS and not self._engine.recording_overflowed():
            self.state = State.RECORDING  # the steps recorded meanwhile are the new profile
            self._consider_planning()
            return
        self._become_passive(f"steps differ too much to be planned: {job.agreement:.0%} of the last one was foretold")

    def _keep(self, facts: Mapping[str, Any]) -> None:
        """Puts the lasting plan into the store, for the next run."""
        if self._store is None:
            return
        key = self.key or self._launch_key  # a bare loop that named no model
        if self._store.put(key, self._lasting, {"early": self._is_early, **facts}):
            self._store.link(self._launch_key, key)

    def _start_refining(self) -> None:
        """This run's plan had to be ready at once. The next run's may take longer."""
        if int(self._lasting["arena_bytes"].sum()) > _GOOD_RATIO * int(self._lasting["lower_bound_bytes"].sum()):
            self._refine = ResizeJob(self._engine, lasting=self._lasting, current=None,
                                     variable_bytes=self._lasting["variable_bytes"].tolist(), deadline_s=_REFINE_S)
            self._refine.start()

    def _keep_refined(self) -> None:
        if self._refine is None or self._refine.is_alive():
            return
        job, self._refine = self._refine, None
        is_same = job.variable_bytes == self._lasting["variable_bytes"].tolist()  # else it was resized meanwhile
        if job.error is None and is_same and job.lasting["arena_bytes"].sum() < self._lasting["arena_bytes"].sum():
            self._lasting = job.lasting
            self._keep({})

    def _activate(self, job: PlanJob) -> None:
        plan = job.current
        arena = int(plan["arena_bytes"].sum())
        if not self._fits(plan):
            self._become_passive(f"the arena needs {arena} bytes, more than max_arena={self.config.max_arena}")
            return
        saved = self._saving(arena, self._born_in_last_step())
        if saved is not None and saved <= 0:
            self._become_passive("an arena beside what earlier steps left behind would take "
                                 f"{-saved >> 20} MiB more than is reserved now; the next run starts with the plan")
            return
        # The arena is taken at the first request of the next step: by then what ended with this one is freed, and the
        # cache is flushed once more.
        self._memory.empty_cache()
        self._engine.arm(plan, 0)
        self._plan = plan
        self.state = State.ACTIVE
        self.activated_at_step = self.num_steps
        self._engine.stop_recording()
        self._figures.activated(plan_seconds=job.seconds)
        self._announcer.active(plan, job.num_events, job.seconds, saved)

    def _saving(self, arena_bytes: int, transient: frozenset[int] = frozenset()) -> int | None:
        """Reserved now, less what would be reserved after activation; None where nothing is ever reserved."""
        reserved = self._memory.reserved_bytes()
        return None if reserved is None else reserved - self._memory.pinned_bytes(transient) - arena_bytes

    def _born_in_last_step(self) -> frozenset[int]:
        """Addresses given out in the step that has just ended: gradients and outputs, which the next one frees."""
        if self._memory.reserved_bytes() is None:
            return frozenset()
        trace = self._engine.recorded()
        begin = int(trace["step_begin"][-2])
        is_birth = trace["event_size"][begin:] > 0
        return frozenset(trace["event_address"][begin:][is_birth].tolist())

    def _watch(self) -> None:
        """After each served step: proves a plan of the store, and notices a run that has left its plan."""
        hit_rate = self._figures.last_step_hit_rate()
        if hit_rate is None:
            return
        if self._unproven and self.num_steps > self._plan["num_prologue"]:
            if hit_rate < _MIN_HIT_RATE:
                self._drop(f"only {hit_rate:.0%} of a step was served as planned")
                return
            self._unproven = False
            self._engine.stop_recording()
        self._bad_steps = self._bad_steps + 1 if hit_rate < 0.5 else 0
        if self._bad_steps >= _MAX_BAD_STEPS:
            self._become_passive("the run no longer repeats the steps that were planned")
            return
        self._consider_resizing()

    def _consider_resizing(self) -> None:
        """Longer batches than the plan was made for: the next one, and the next run, shall find room for them."""
        if self._resize is None:
            met = self._engine.variable_bytes()
            planned = self._plan["variable_bytes"].tolist()
            if any(seen > known for seen, known in zip(met, planned, strict=True)):
                needed = [max(seen, known) for seen, known in zip(met, planned, strict=True)]
                self._resize = ResizeJob(self._engine, lasting=self._lasting, current=self._plan, variable_bytes=needed,
                                         deadline_s=min(max(self._step_seconds, 0.2), 5.0))
                self._resize.start()
            return
        if not self._has_ended(self._resize):
            return
        job, self._resize = self._resize, None
        if job.error is not None:
            raise job.error
        self._lasting = job.lasting
        self._keep({})
        growth = int((job.current["arena_bytes"] - self._plan["arena_bytes"]).clip(min=0).sum())
        saved = self._saving(growth)
        if (saved is not None and saved < 0) or not self._fits(job.current):
            return
        if growth > 0:
            self._memory.empty_cache()
        if self._engine.grow(job.current):
            self._plan = job.current
            self._announcer.grown(self._plan, growth)

    def _drop(self, reason: str) -> None:
        """A plan of the store that does not fit: profile anew. The recording has gone on since the start."""
        self._announcer.warn(f"The stored plan is not used: {reason}. Profiling anew.")
        self._engine.deactivate()
        self._engine.trim()
        self._plan = self._candidate_key = None
        self.from_cache = self._unproven = False
        self.activated_at_step = None
        self.state = State.RECORDING

    def _become_passive(self, reason: str) -> None:
        self.reason = reason
        self.state = State.PASSIVE
        if self._job is not None:
            self._job.cancel()
        if self._engine is not None:
            self._engine.deactivate()
            self._engine.stop_recording()
            self._engine.trim()
        self._announcer.passive(reason)

    def _fail(self, error: Exception) -> None:
        """An error of ours. Nothing here may raise."""
        if self._has_failed:
            return
        self._has_failed = True
        self.reason = f"internal error: {type(error).__name__}: {error}"
        self.state = State.PASSIVE
        try:
            if self._engine is not None:
                self._engine.set_serve_gaps(False)
                self._engine.deactivate()
                self._engine.stop_recording()
            self._announcer.failed(error)
        except Exception:  # noqa: BLE001 - nothing left to try; the native allocator serves in any case
            pass


# --- the process's session ---

_current: Session | None = None
_sections: list[tuple[Source, Mapping[str, Any], str]] = []


def offer(section: Mapping[str, Any], source: Source, origin: str) -> Session | None:
    """Hands in a section that a door found (`origin`: its file or "code"); starts or reconfigures the session.

    Raises ConfigError, which a door passes on. None while no section asks for us.
    """
    if not isinstance(section, Mapping):
        raise ConfigError(describe(origin, "stalloc", section, "must be a section of keys and values"))
    StallocConfig.from_mapping(section, origin)  # names the file in its error, which the merge cannot
    _sections.append((source, section, origin))
    config, conflicts = merge([(where, mapping) for where, mapping, _ in _sections])
    if environment.is_disabled():
        return None
    if _current is None:
        if not config.enabled:
            return None
        Session(config).start()
    else:
        _current.reconfigure(config)
    for conflict in conflicts:
        _current._announcer.warn_once(conflict)
    return _current


def current() -> Session | None:
    return _current


def _present_backend() -> str:
    """Asks NVML where torch can, so that no CUDA context is made and forks stay possible."""
    import torch
    return "cuda" if torch.version.cuda is not None and torch.cuda.device_count() > 0 else "cpu"


def _cuda_device_index(is_early: bool) -> int:
    """The device this rank trains on: the current one; before CUDA is initialised the one that launchers mean."""
    import torch
    if not is_early:
        return torch.cuda.current_device()
    return environment.local_rank() % max(torch.cuda.device_count(), 1)


def _forget_in_child() -> None:
    global _current
    _current = None


def _close_at_exit() -> None:
    if _current is not None:
        _current.close()


os.register_at_fork(after_in_child=_forget_in_child)
atexit.register(_close_at_exit)
