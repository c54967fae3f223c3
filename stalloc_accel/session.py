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
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from stalloc_accel import environment, plan_job
from stalloc_accel.activation import Activation
from stalloc_accel.announcer import Announcer
from stalloc_accel.config import StallocConfig
from stalloc_accel.device import Device, take_device
from stalloc_accel.errors import BuildError, ConfigError
from stalloc_accel.figures import Figures
from stalloc_accel.longest_batch import LongestBatch
from stalloc_accel.memory import DeviceMemory
from stalloc_accel.plan_job import Plan, PlanJob, awaits_more_steps, is_dynamic

if TYPE_CHECKING:
    from stalloc_accel.kept_plans import KeptPlans
    from stalloc_accel.rehearsal import Rehearsal

BOUNDARY_KINDS = ("deepspeed", "trainer", "accelerate", "bare", "optimizer")
"""Who may announce steps, the most trustworthy first ("bare": the loop calls step() itself); see claim_boundary."""

_RECORDED_EVENTS = 1 << 22  # 24 bytes each, touched as they fill
_MIN_AGREEMENT = 0.95  # of a recorded step with the plan
_MIN_DYNAMIC_AGREEMENT = 0.6  # where the plan itself keeps room for what differs
_MIN_HIT_RATE = 0.9  # of the first repeating step with a plan from the store
_MAX_ATTEMPTS = 4  # plans made before we give up
_MAX_BAD_STEPS = 8  # in a row with less than half of the requests served from their slots
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
        self._kept: KeptPlans | None = None  # None: no store yet
        self._job: PlanJob | None = None
        self._activation: Activation | None = None
        self._candidate_key: Any = None  # of the plan that was armed before the model was known
        self._unproven = False  # a plan of the store that has not served a repeating step yet
        self._kind: str | None = None
        self._attempts = 0
        self._least_steps = 0  # to be recorded for a plan
        self._bad_steps = 0
        self._wait_left_s = _PLANNER_WAIT_S
        self._step_seconds = 0.0
        self._step_began = time.perf_counter()
        self._is_early = False
        self._awaits_host = False  # a plan was found that begins when the host is built
        self._is_audited = False
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
        device = self._take_device()
        if device is None:
            return
        self._engine, self._memory, self._is_early = device.engine, device.memory, device.is_early
        self._engine.set_handover(self.hands_over)
        self._engine.start_recording(_RECORDED_EVENTS)
        self._figures = Figures(self, self._engine, self._memory)
        self._activation = Activation(self, self._engine, self._memory, self._keep)
        self.state = State.RECORDING
        self._open_store()
        if not self._arm_candidate():
            self._record_compactly()
            if not self._awaits_host:
                self._announce_recording()

    @_harmless
    def attach(self, model: Any, *field_maps: Mapping[str, Any]) -> None:
        """Names the model and its parallel configuration: makes the key. The first call wins."""
        if self._engine is None or self.key is not None:
            return
        from stalloc_accel import fingerprint
        fields = [fingerprint.model_fields(model)] if model is not None else []
        self.key = fingerprint.make_key(*fields, fingerprint.rank_fields(), *field_maps,
                                        fingerprint.version_fields(self._memory.backend),
                                        {"session.handover": self.hands_over, "session.max_length": self.config.max_length})
        if self._candidate_key is not None:
            if self._candidate_key.digest != self.key.digest:
                self._drop("the model or its configuration differs from that of the plan found for this command")
        elif self.state is State.RECORDING and self._kept is not None:
            self._begin_after_host()
            self._use_stored()
            if self._awaits_host and self.state is State.RECORDING:
                self._announce_recording()

    @_harmless
    def vouch_for_streams(self, handles: Iterable[int] = ()) -> None:
        """Says that the host's use of streams was audited (docs/streams.md). Before attach, because it changes the plan.

        `handles`: streams of the host that may use memory without ever asking for any.
        """
        self._is_audited = True
        if self._engine is not None:
            for handle in handles:
                self._engine.follow_stream(handle)
            self._engine.set_handover(self.hands_over)

    @property
    def hands_over(self) -> bool:
        """Whether streams may reuse each other's memory. On the CPU, where they stand for threads, nothing tells their order."""
        return (self._is_audited and self.config.handover == "audited"
                and (self._memory is None or self._memory.backend == "cuda"))

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
        self._activation.keep_refined()
        if self.state is State.RECORDING:
            self._consider_planning()
        elif self.state is State.PLANNING:
            self._consider_activation()
        elif self.state is State.ACTIVE:
            self._watch()
        elif self._engine.recording_overflowed():
            self._activation.stop_learning()

    @_harmless
    def phase_may_begin(self, is_certain: bool = False) -> None:
        """What follows may be an evaluation, a prediction or a save: it is one if phase_ended() is called before step().

        `is_certain`: it is one, so that a batch larger than any step's does not let the plan grow.
        """
        if self._engine is not None and not self._closed:
            self._engine.begin_phase(is_certain)

    @_harmless
    def phase_ended(self) -> None:
        """What came since the last step, or since phase_may_begin(), is no part of the next step."""
        if self._engine is not None and not self._closed:
            self._engine.end_phase()

    @_harmless
    def pass_through(self, reason: str = "asked for") -> None:
        """From now on torch's own allocator serves everything; what was served stays valid."""
        if self._engine is not None:
            self._engine.set_serve_gaps(False)
            self._memory.use_expandable_segments(False)
        self._become_passive(reason)

    @_harmless
    def close(self) -> None:
        """Ends the session and reports. Idempotent; also runs at the interpreter's exit."""
        if self._closed:
            return
        self._closed = True
        if self._job is not None:
            self._job.cancel()
            # A thread inside our C++ code when the interpreter goes away would end the process; its deadline is short.
            self._job.join(plan_job.JOIN_TIMEOUT_S)
        if self._activation is None:
            return
        self._finish_plans()
        figures = self.figures()
        self._engine.stop_recording()
        self._announcer.summary(figures, self.reason)
        path = self.config.summary_path(environment.rank())
        if path is not None:
            self._figures.write(path, figures)

    @_harmless
    def _finish_plans(self) -> None:
        self._activation.finish()

    def warn_once(self, text: str) -> None:
        self._announcer.warn_once(text)

    def figures(self) -> dict[str, Any]:
        """What the session did so far, as JSON values; empty while it is off. Keys: docs/figures.md."""
        return self._figures.collect() if self._figures is not None else {}

    @property
    def rank(self) -> int:
        return environment.rank()

    @property
    def served_plan(self) -> Plan | None:
        return self._activation.served if self._activation is not None else None

    def reconfigure(self, config: StallocConfig) -> None:
        """Takes settings that were found later than the first ones."""
        if config == self.config:
            return
        old, self.config = self.config, config
        self._announcer.set_level(config.log_level)
        if self._engine is not None:
            self._engine.set_handover(self.hands_over)
        if not config.enabled:
            self.pass_through("enabled is false")
        elif self.state is State.OFF and not old.enabled:
            self.start()
        elif (config.cache_path(), config.cache) != (old.cache_path(), old.cache) and self._engine is not None:
            self._open_store()

    # --- allocator and store ---

    def _take_device(self) -> Device | None:
        """None, with one warning, where there is no allocator to take: training goes on without us."""
        try:
            return take_device(self.config.backend)
        except (BuildError, RuntimeError, ValueError) as error:
            self.reason = str(error)
            self._announcer.warn(str(error))
            return None

    def _open_store(self) -> None:
        from stalloc_accel import fingerprint
        from stalloc_accel.kept_plans import KeptPlans
        launch_key = fingerprint.launch_key(self.config, self._memory.backend)
        self._kept = KeptPlans(self.config, launch_key, is_early=self._is_early)

    def _arm_candidate(self) -> bool:
        """Before the model exists: the plan that the same command left behind, if there is one."""
        found = self._kept.candidate()
        if found is None or not self._may_serve(found[1].plan):
            return False
        key, stored = found
        self._awaits_host = not self._is_early and not self._kept.is_of_command(key)
        if self._awaits_host:
            return False  # it begins when the host is built: _begin_after_host
        self._candidate_key = key
        self._arm(stored)
        return True

    def _may_serve(self, plan: Plan) -> bool:
        return self._activation.fits(plan) and not (self.config.dynamic == "off" and is_dynamic(plan))

    def _announce_recording(self) -> None:
        self._announcer.recording(self.config.skip_steps, self.config.profile_steps)

    def _record_compactly(self) -> None:
        """What is born while we record stays where it is, beside the arena: expandable segments lose less around it."""
        if self.config.expandable_segments == "auto":
            self._memory.use_expandable_segments(True)

    @property
    def _begins_with_host(self) -> bool:
        return not self._is_early and self.num_steps == 0

    def _begin_after_host(self) -> None:
        """Where the model was there before us, the plan is of what comes once the host is built: a host that casts,
        flattens or partitions the model leaves its old memory behind, which is flushed only then."""
        if self._begins_with_host:
            self._engine.start_recording(_RECORDED_EVENTS)
            self._memory.empty_cache()

    def _use_stored(self) -> None:
        """The plan of the model's key: whole where it begins here too, else what it has for a run that is under way."""
        stored = self._kept.of_model(self.key)
        if stored is None or not self._may_serve(stored.plan):
            return
        if self._begins_with_host and self._kept.begins_as_this_run(stored):
            self._candidate_key = self.key
            self._arm(stored)
            return
        self.from_cache = True
        self._start_job(lasting=stored.plan)

    def _arm(self, stored: Any) -> None:
        self._activation.arm_stored(stored.plan)
        self.from_cache = self._unproven = True
        self.state = State.ACTIVE
        self.activated_at_step = 0
        self._figures.activated()
        self._announcer.active_from_store(stored.plan, is_early=self._is_early)

    # --- the state machine ---

    def _consider_planning(self) -> None:
        if self._engine.recording_overflowed():
            self._become_passive(f"a step makes more than {_RECORDED_EVENTS} allocations and frees")
        elif self.num_steps >= max(self.config.skip_steps + max(self.config.profile_steps, 2), self._least_steps):
            if not awaits_more_steps(self._engine.recorded(), self.config.skip_steps):
                self._start_job()

    def _start_job(self, lasting: Plan | None = None) -> None:
        self._attempts += 1
        longest = self._longest_batch()
        # Against expandable segments, on the recorded steps: there a plan with room for longer batches does not show its worth.
        is_rehearsed = longest is None and self._memory.has_expandable_segments()
        self._job = PlanJob(self._engine, deadline_s=self.planning_s(), num_unsettled=self.config.skip_steps, lasting=lasting,
                            shares_spaces=self.hands_over, longest_batch=longest, is_rehearsed=is_rehearsed,
                            most_bytes=self._activation.most_bytes() if longest is not None else None)
        self._job.start()
        self.state = State.PLANNING

    def _longest_batch(self) -> LongestBatch | None:
        longest = LongestBatch.of_run(self.config.max_length, self.key.fields if self.key is not None else {})
        if longest is None and self.config.max_length is not None:
            self._announcer.warn_once(f"max_length={self.config.max_length} is not used: no host told the number of samples in a batch.")
        return longest

    def _consider_activation(self) -> None:
        job = self._job
        job.step_ended()
        if not self._has_ended(job):
            return
        # The job is let go last: where an interrupt of the program's ends this, the next boundary does it again.
        self._decide(job)
        if self._job is job:
            self._job = None

    def _decide(self, job: PlanJob) -> None:
        if job.error is not None:
            self._become_passive(f"planning failed: {job.error}")
        elif job.is_premature:
            self._attempts -= 1
            self._least_steps = plan_job.DYNAMIC_STEPS
            self._retry(job)
        elif job.agreement < (_MIN_DYNAMIC_AGREEMENT if is_dynamic(job.current) else _MIN_AGREEMENT):
            self._retry(job)
        elif is_dynamic(job.current):
            self._decide_dynamic(job)
        else:
            self._decide_repeating(job)

    def _decide_repeating(self, job: PlanJob) -> None:
        """Steps that ask for the same each time: their plan is good for the next run, and for this one unless it did worse."""
        if job.lacks_room:
            self._announcer.warn_once(f"max_length={self.config.max_length} is not used: an arena for such batches needs more than there is.")
        lasting, rehearsal = job.lasting_rehearsal, job.rehearsal
        is_kept = lasting is None or not lasting.costs
        if is_kept:
            self._keep_lasting(job)
        if rehearsal is None or not rehearsal.needs_more:
            self._activate(job)
            return
        self._become_passive(
            f"with the plan the recorded steps would have needed {rehearsal.planned_bytes >> 20} MiB, without it "
            f"{rehearsal.unplanned_bytes >> 20}" + ("; the next run starts with the plan" if is_kept else ", and so it would be in the next run"))

    def _decide_dynamic(self, job: PlanJob) -> None:
        """Steps that differ in the number of their requests: a plan is worth it where it did well in the recorded ones."""
        if self._serves(job.lasting_rehearsal):
            self._keep_lasting(job)
        if self._serves(job.rehearsal):
            self._activate(job)
            return
        self._become_passive("steps differ in the number of their allocations" + (
            "" if self.config.dynamic == "off" else f", and a plan would have needed {job.rehearsal.planned_bytes >> 20} MiB for the recorded "
            f"ones, expandable segments {job.rehearsal.unplanned_bytes >> 20}"))

    def _serves(self, rehearsal: Rehearsal) -> bool:
        return self.config.dynamic == "plan" or (self.config.dynamic == "auto" and rehearsal.pays)

    def _keep_lasting(self, job: PlanJob) -> None:
        self._activation.lasting = job.lasting
        if not self.from_cache:
            self._keep(job.lasting, {"num_events": job.num_events, "plan_seconds": round(job.seconds, 4)})
            self._activation.start_refining()

    def planning_s(self) -> float:
        """How long a planner may search beside the training: about a step."""
        return min(max(self._step_seconds, 0.2), 5.0)

    def _has_ended(self, job: PlanJob) -> bool:
        """Waits a little where steps are shorter than planning, in all no more than _PLANNER_WAIT_S a run."""
        began = time.perf_counter()
        has_ended = job.wait(max(self._wait_left_s, 0.0))
        self._wait_left_s -= time.perf_counter() - began
        return has_ended

    def _retry(self, job: PlanJob) -> None:
        self.from_cache = False
        if self._attempts < _MAX_ATTEMPTS and not self._engine.recording_overflowed():
            self.state = State.RECORDING  # the steps recorded meanwhile are the new profile
            self._consider_planning()
            return
        self._become_passive(f"steps differ too much to be planned: {job.agreement:.0%} of the last one was foretold")

    def _keep(self, lasting: Plan, facts: Mapping[str, Any]) -> None:
        """Puts a lasting plan into the store, for the next run."""
        if self._kept is not None:
            self._kept.keep(self.key, lasting, facts)

    def _activate(self, job: PlanJob) -> None:
        saved = self._activation.saving(job.needed_bytes)
        refusal = self._activation.refusal(job.current, saved)
        if refusal:
            self._become_passive(refusal)
            return
        self._activation.take(job)
        self.activated_at_step = self.num_steps
        self._engine.stop_recording()
        self._figures.activated(plan_seconds=job.seconds)
        self.state = State.ACTIVE
        self._announcer.active(job.current, job.num_events, job.seconds, saved)

    def _watch(self) -> None:
        """After each served step: proves a plan of the store, and notices a run that has left its plan."""
        hit_rate = self._figures.last_step_hit_rate(with_gaps=is_dynamic(self.served_plan))
        if hit_rate is None:
            return
        if self._unproven and self.num_steps > self.served_plan["num_prologue"]:
            if hit_rate < _MIN_HIT_RATE:
                self._drop(f"only {hit_rate:.0%} of a step was served as planned")
                return
            self._unproven = False
            self._engine.stop_recording()
        self._bad_steps = self._bad_steps + 1 if hit_rate < 0.5 else 0
        if self._bad_steps >= _MAX_BAD_STEPS:
            self._become_passive("the run no longer repeats the steps that were planned")
            return
        growth = self._activation.follow_lengths()
        if growth is not None:
            self._announcer.grown(self.served_plan, growth)

    def _drop(self, reason: str) -> None:
        """A plan of the store that does not fit: profile anew. The recording has gone on since the start."""
        self._announcer.warn(f"The stored plan is not used: {reason}. Profiling anew.")
        self._activation.drop()
        self._candidate_key = None
        self.from_cache = self._unproven = False
        self.activated_at_step = None
        self.state = State.RECORDING
        self._record_compactly()

    def _become_passive(self, reason: str) -> None:
        self.reason = reason
        self.state = State.PASSIVE
        if self._job is not None:
            self._job.cancel()
        if self._engine is not None:
            self._engine.deactivate()
            if not self._activation.learn_on():
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
                self._memory.use_expandable_segments(False)
            self._announcer.failed(error)
        except Exception:  # noqa: BLE001 - nothing left to try; the native allocator serves in any case
            pass


# --- the process's session ---

_current: Session | None = None


def current() -> Session | None:
    return _current


def _forget_in_child() -> None:
    global _current
    _current = None


def _close_at_exit() -> None:
    if _current is not None:
        _current.close()


os.register_at_fork(after_in_child=_forget_in_child)
atexit.register(_close_at_exit)
