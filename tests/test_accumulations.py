"""Accumulation over micro-steps with batches of other lengths each: what a first and a second run need."""

from __future__ import annotations

import random

import pytest
from accumulations import Model, Training, random_lengths
from histories import KIB

from stalloc_accel import _core
from stalloc_accel.config import StallocConfig
from stalloc_accel.device import Device
from stalloc_accel.replay import ReplaySession, SimulatedMemory, replay


@pytest.mark.parametrize("longest", (0, 3), ids=("constructs", "comes while planning"))
def test_an_arena_is_taken_only_where_it_pays_for_the_longest_batch_seen(longest):
    lengths = [400, 344, 620, 376, 680, 700, 320, 456, 536, 720]
    lengths[longest] = 1368
    trace = Training(Model(token_bytes=32 << 10, logit_bytes=512 << 10), [(length,) for length in lengths]).core()
    expandable = replay(trace, "expandable").peaks().reserved_bytes
    ours = replay(trace, "stalloc", config=StallocConfig(cache="off", log_level="error"))
    assert ours.peaks().reserved_bytes <= expandable
    assert ours.plan is None or ours.plan["variable_bytes"].max() >= 8 * 1368


@pytest.mark.parametrize("seed", range(12))
def test_a_first_run_needs_no_more_than_without_us_whatever_the_lengths(seed):
    draw = random.Random(seed)
    trace = Training(Model.random(draw), random_lengths(draw, 14, draw.randint(1, 3))).core()
    native = replay(trace, "native").peaks().reserved_bytes
    ours = replay(trace, "stalloc", config=StallocConfig(cache="off", log_level="error"), handover_audited=draw.random() < 0.5)
    assert ours.peaks().reserved_bytes <= native


@pytest.mark.parametrize("seed", (0, 3, 4, 5))
def test_a_first_run_needs_no_more_than_expandable_segments(seed):
    draw = random.Random(seed)
    trace = Training(Model.random(draw), random_lengths(draw, 14, draw.randint(1, 3))).core()
    ours = replay(trace, "stalloc", config=StallocConfig(cache="off", log_level="error"), handover_audited=draw.random() < 0.5)
    assert ours.peaks().reserved_bytes <= replay(trace, "expandable").peaks().reserved_bytes


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


@pytest.mark.parametrize(("max_length", "settings", "planned_length"), [
    (2000, {}, 2000), (2000, {"max_arena": "1200MiB"}, 680), (1 << 20, {}, 680), (1 << 31, {}, 680)],
    ids=("fits", "more than max_arena", "more than the device", "more than any plan"))
def test_room_for_the_longest_batch_is_made_only_where_there_is_as_much(max_length, settings, planned_length, tmp_path):
    trace = Training(Model(token_bytes=16 * KIB, logit_bytes=256 * KIB), [(length,) for length in (400, 680, 520, 376, 620, 560, 640, 320)]).core()
    config = StallocConfig.from_mapping({"cache_dir": str(tmp_path), "log_level": "error", "max_length": max_length, **settings}, source="test")
    states = []
    for _ in range(2):
        run = _core.SimulatedRun(trace, {})
        with ReplaySession(run, config, "longest") as session:
            session.attach(None, {"accelerate.batch_size": 1})
            for mark in trace.step_begin[1:]:
                assert run.advance(int(mark))
                session.step()
            assert session.served_plan["variable_bytes"].max() == 8 * planned_length, session.reason
            states.append((session.state.value, session.from_cache))
        run.finish()
    assert states == [("active", False), ("active", True)]


@pytest.mark.parametrize("checkpoints", (False, True))
def test_a_second_run_with_longer_batches_takes_no_room_beside_that_of_its_plan(checkpoints, tmp_path):
    model = Model(weight_bytes=64 << 20, token_bytes=16 << 10, logit_bytes=256 << 10, checkpoints=checkpoints)
    config = StallocConfig(cache_dir=str(tmp_path), log_level="error")
    shorter = [(400, 344), (520, 376), (480, 500), (320, 456), (512, 420), (336, 300)]
    replay(Training(model, shorter).core(), "stalloc", config=config, name="longer")
    trace = Training(model, [*shorter[:4], (840, 416), (300, 912), (700, 640)]).core()
    ours = replay(trace, "stalloc", config=config, name="longer")
    assert ours.activated_at_step == 0
    assert ours.peaks().reserved_bytes <= min(1.02 * ours.rounded_peak_bytes, replay(trace, "expandable").peaks().reserved_bytes)
