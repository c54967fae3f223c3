"""The plan that a session serves: whether an arena for it pays, taking it, and placing it anew beside the training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from stalloc_accel import plan_job
from stalloc_accel.memory import DeviceMemory
from stalloc_accel.plan_job import Plan, PlanJob, ResizeJob

if TYPE_CHECKING:
    from stalloc_accel.session import Session

_REFINE_S = 4.0  # for placing the next run's plan better, beside the training
_SPARE = 16  # this part of the device
_GOOD_RATIO = 1.0005  # of arena to lower bound: no refining


class Activation:
    """Holds two plans: `served`, and `lasting`, its like in the store from the first event on. None until there is one."""

    def __init__(self, session: Session, engine: Any, memory: DeviceMemory,
                 keep: Callable[[Plan, Mapping[str, Any]], None]) -> None:
        """`keep(lasting, facts)` puts a plan into the store."""
        self._session = session
        self._engine = engine
        self._memory = memory
        self._keep = keep
        self._resize: ResizeJob | None = None
        self._refine: ResizeJob | None = None
        self._is_learning = False  # the recording goes on for the sake of the next run's plan
        self.served: Plan | None = None
        self.lasting: Plan | None = None

    def arm_stored(self, plan: Plan) -> None:
        """Serves a plan of the store from the first event on."""
        self._serve(plan, 0)
        self.lasting = plan

    def drop(self) -> None:
        self._engine.deactivate()
        self._engine.trim()
        self.served = None

    def fits(self, plan: Plan) -> bool:
        """Whether max_arena allows it."""
        limit = self._arena_limit()
        return limit is None or int(plan["arena_bytes"].sum()) <= limit

    def most_bytes(self) -> int | None:
        """The largest arena that is taken for what may never come: max_arena allows it and the device has it, with some to spare
        for the rest of the program. None where there is no limit."""
        limits = [self._arena_limit()]
        if (available := self._memory.available_bytes()) is not None:
            limits.append(available - available // _SPARE)
        return min((limit for limit in limits if limit is not None), default=None)

    def _arena_limit(self) -> int | None:
        config = self._session.config
        total = self._memory.total_bytes() if isinstance(config.max_arena, float) else 0
        return config.max_arena_bytes(total or 0)

    def refusal(self, plan: Plan, saved: int | None) -> str:
        """Why an arena for `plan`, which saves so much, would not pay now; empty where it does."""
        if not self.fits(plan):
            arena = int(plan["arena_bytes"].sum())
            return f"the arena needs {arena} bytes, more than max_arena={self._session.config.max_arena}"
        if saved is None or saved > 0:
            return ""
        return ("an arena beside what earlier steps left behind would take "
                f"{-saved >> 20} MiB more than is reserved now; the next run starts with the plan")

    def take(self, job: PlanJob) -> None:
        """Serves the plan of a job that has ended."""
        # The arena is taken at the first request of the next step: by then what ended with this one is freed, and the
        # cache is flushed once more.
        self._serve(job.current, job.plan_step(self._session.num_steps))

    def _serve(self, plan: Plan, plan_step: int) -> None:
        self._memory.use_expandable_segments(False)  # the arena needs none, and what is shared with others is in it
        self._memory.empty_cache()
        self._engine.set_arena_limit(self._arena_limit() or 0)
        self._engine.arm(plan, plan_step)
        self.served = plan

    def saving(self, arena_bytes: int) -> int | None:
        """Reserved now, less what would be reserved with such an arena; None where nothing is ever reserved.

        Looks at all segments and copies the recording.
        """
        reserved = self._memory.reserved_bytes()
        if reserved is None:
            return None
        return reserved - self._memory.pinned_bytes(self._born_in_last_step()) - arena_bytes

    def _born_in_last_step(self) -> frozenset[int]:
        """Addresses given out in the step that has just ended: gradients and outputs, which the next one frees."""
        trace = self._engine.recorded()
        begin = int(trace["step_begin"][-2])
        is_birth = trace["event_size"][begin:] > 0
        return frozenset(trace["event_address"][begin:][is_birth].tolist())

    # --- beside the training ---

    def finish(self) -> None:
        """Waits for the threads, whose deadlines are short, and keeps what they and the last steps have learnt."""
        for thread in (self._resize, self._refine):
            if thread is not None:
                thread.join(plan_job.JOIN_TIMEOUT_S)
        self.keep_refined()
        self._keep_resized()
        self.stop_learning()
        self._start_resizing()
        if self._resize is not None:
            self._resize.join(plan_job.JOIN_TIMEOUT_S)
            self._keep_resized()
        # Of what was placed anew just now; one that was for shorter batches begins anew. A thread inside our C++ code when the
        # interpreter goes away would end the process.
        for _ in range(2):
            if self._refine is not None:
                self._refine.join(plan_job.JOIN_TIMEOUT_S)
                self.keep_refined()

    def start_refining(self) -> None:
        """This run's plan had to be ready within a step. The next run's may take longer."""
        arena, bound = (int(self.lasting[name].sum()) for name in ("arena_bytes", "lower_bound_bytes"))
        if self._refine is None and arena > _GOOD_RATIO * bound:
            self._refine = ResizeJob(lasting=self.lasting, variable_bytes=self.lasting["variable_bytes"].tolist(),
                                     deadline_s=_REFINE_S)
            self._refine.start()

    def keep_refined(self) -> None:
        if self._refine is None or self._refine.is_alive():
            return
        job, self._refine = self._refine, None
        if job.variable_bytes != self.lasting["variable_bytes"].tolist():
            self.start_refining()  # it was placed anew for longer batches meanwhile
        elif job.error is None and job.lasting["arena_bytes"].sum() < self.lasting["arena_bytes"].sum():
            self.lasting = job.lasting
            self._keep(self.lasting, {})

    def follow_lengths(self) -> int | None:
        """Where batches were longer than the plan was made for, the engine has placed its slots anew. The next run's plan
        follows.

        Returns the bytes by which the arena may grow; None where the engine's plan is the same.
        """
        self._keep_resized()
        self._start_resizing()
        if self._engine.planned_variable_bytes() == self.served["variable_bytes"].tolist():
            return None
        before, self.served = self.served, self._engine.plan()
        return int((self.served["arena_bytes"] - before["arena_bytes"]).clip(min=0).sum())

    def learn_on(self) -> bool:
        """Whether a run that is not served is to be recorded on: the next one shall begin with room for its longest batch."""
        self._is_learning = self.served is None and self.lasting is not None and len(self.lasting["variable_bytes"]) > 0
        return self._is_learning

    def stop_learning(self) -> None:
        """Ends that recording, which is full or that of a run that ends, and makes the plan that it tells of."""
        if not self._is_learning:
            return
        self._is_learning = False
        self._resize = ResizeJob(lasting=self.lasting, trace=self._engine.recorded(), deadline_s=self._session.planning_s())
        self._resize.start()
        self._engine.stop_recording()

    def _start_resizing(self) -> None:
        if self._resize is not None or self.lasting is None or self.served is None:
            return
        met, planned = self._engine.variable_bytes(), self.lasting["variable_bytes"].tolist()
        if any(seen > known for seen, known in zip(met, planned, strict=True)):
            needed = [max(seen, known) for seen, known in zip(met, planned, strict=True)]
            self._resize = ResizeJob(lasting=self.lasting, variable_bytes=needed, deadline_s=self._session.planning_s())
            self._resize.start()

    def _keep_resized(self) -> None:
        if self._resize is None or self._resize.is_alive():
            return
        job, self._resize = self._resize, None
        if job.error is not None:
            raise job.error
        if job.variable_bytes == self.lasting["variable_bytes"].tolist():
            return
        self.lasting = job.lasting
        self._keep(self.lasting, {})
        self.start_refining()
