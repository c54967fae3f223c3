"""What a plan would have made of the recorded steps decides whether it serves this run, and whether the next one gets it."""

from __future__ import annotations

import random

import pytest
from accumulations import Model, Training, random_lengths
from histories import KIB, MIB, History
from programs import Runner, training_step

from stalloc_accel import _core
from stalloc_accel.config import StallocConfig
from stalloc_accel.device import Device
from stalloc_accel.plan_job import PlanJob
from stalloc_accel.replay import ReplaySession, SimulatedMemory, replay


def test_steps_that_ask_for_nothing_are_rehearsed_among_the_others(seed):
    host = _core.HostEngine(8 << 30)
    host.engine.start_recording(1 << 18)
    runner = Runner(host)
    host.engine.end_step()  # an optimizer that has no gradients yet
    for _ in range(3):
        runner.run(training_step(seed))
        host.engine.end_step()
    job = PlanJob(host.engine, deadline_s=0.1, num_unsettled=1, is_rehearsed=True)
    job.start()
    while not job.wait(60.0):
        runner.run(training_step(seed))
        host.engine.end_step()
        job.step_ended()
    assert job.error is None
    assert job.rehearsal.planned_bytes >= job.current["arena_bytes"].sum() > 0


class MemoryWithoutExpandableSegments(SimulatedMemory):
    """As in a container that forbids pidfd_getfd: what is asked for does not happen."""

    def use_expandable_segments(self, value: bool) -> None:
        pass


class SessionWithoutExpandableSegments(ReplaySession):
    def _take_device(self) -> Device:
        device = super()._take_device()
        return Device(engine=device.engine, memory=MemoryWithoutExpandableSegments(self._run), is_early=device.is_early)


@pytest.mark.parametrize("seed", (0, 2, 8))
def test_a_first_run_is_not_held_to_expandable_segments_where_there_are_none(seed):
    draw = random.Random(seed)
    trace = Training(Model.random(draw), random_lengths(draw, 14, draw.randint(1, 3))).core()
    run = _core.SimulatedRun(trace, {})
    with SessionWithoutExpandableSegments(run, StallocConfig(cache="off", log_level="error"), "") as session:
        for mark in trace.step_begin[1:]:
            assert run.advance(int(mark))
            session.step()
        assert session.state.value == "active", session.reason
    assert run.finish()["span_reserved_peak"].max() < 0.75 * replay(trace, "native").peaks().reserved_bytes


@pytest.mark.parametrize("seed", [20, 21])
def test_a_plan_for_lengths_that_never_come_together_is_not_kept_for_the_next_run(tmp_path, seed):
    """Encoder and decoder: attention scores follow a product of two lengths, and one plan for the longest of both needs twice as much."""
    draw, history, marks = random.Random(seed), History(), []
    weights = [history.allocate(6 * MIB) for _ in range(8)]
    for _ in range(20):
        source, target = draw.randint(60, 1000), draw.randint(60, 1000)
        if source + target > 1200:
            source, target = (source, 60) if source > target else (60, target)
        marks.append(len(history.rows))
        sizes = [8 * source, 8 * target] + [KIB * source * (1 + layer % 3) for layer in range(12)] + [32 * source * source] * 4
        sizes += [KIB * target * (1 + layer % 3) for layer in range(12)] + [32 * target * length for _ in range(4) for length in (target, source)]
        for block in reversed([history.allocate(size) for size in sizes]):
            history.free(block)
    marks.append(len(history.rows))
    for weight in weights:
        history.free(weight)
    trace = history.core(tuple(marks))
    config = StallocConfig(cache_dir=str(tmp_path), log_level="error")
    for _ in range(2):
        run = replay(trace, "stalloc", config=config, name="two lengths")
        assert run.peaks().reserved_bytes <= 1.02 * replay(trace, "expandable").peaks().reserved_bytes
