"""Memory that goes from one stream to another: when it may, and that every shortcut is caught."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from histories import MIB, History
from programs import Runner, allocate_from_threads, training_step
from stalloc_accel import _core
from stalloc_accel.config import StallocConfig
from stalloc_accel.replay import ReplaySession, replay

MAIN, GATHER = 0, 1
GRANULE = 2 * MIB


def gathering(num_steps: int = 8, num_layers: int = 8, num_weights: int = 4) -> tuple[History, list[int]]:
    """Weights gathered on a stream of their own for each layer, while activations grow on the main one; then a peak of
    the main stream alone, and one of the other alone."""
    history, marks = History(), []
    history.free(history.allocate(512, MAIN), history.allocate(512, GATHER))
    weights = [history.allocate(3 * MIB) for _ in range(num_weights)]
    for _ in range(num_steps):
        marks.append(len(history.rows))
        activations = []
        for layer in range(num_layers):
            gathered = history.allocate(8 * MIB, GATHER)
            small = history.allocate(4096, GATHER)
            activations.append(history.allocate(2 * MIB + 512 * layer))
            history.free(gathered, small)
        history.free(history.allocate(64 * MIB), *activations)
        history.free(history.allocate(72 * MIB, GATHER))
    marks.append(len(history.rows))
    assert len(weights) == num_weights
    return history, marks


def trace_of(history: History, marks: list[int], num_steps: int = 5) -> dict:
    """What an engine would have recorded of the first steps: roles are streams here."""
    rows = [row for row in history.rows[:marks[num_steps]] if row[0] != 2]  # without the completions
    kept = np.cumsum([0, *(row[0] != 2 for row in history.rows)])
    return {"event_address": np.array([row[1] for row in rows], np.uint64),
            "event_size": np.array([row[2] if row[0] == 0 else 0 for row in rows], np.int64),
            "event_role": np.array([row[3] for row in rows], np.int32),
            "step_begin": np.array([0, *kept[marks[1:num_steps + 1]]], np.int64),
            "num_roles": 1 + max(row[3] for row in rows)}


def shared_run(history: History, marks: list[int], plan: dict, *, audited: bool = True, allowed: bool = True):
    run = _core.SimulatedRun(history.core(tuple(marks)), {"handover_audited": audited})
    run.engine.set_handover(allowed)
    run.engine.arm(plan, 0)
    return run


def drive(run, marks: list[int]) -> str:
    for mark in marks[1:]:
        if not run.advance(mark):
            break
        run.engine.end_step()
    return run.offence


@pytest.fixture(scope="module")
def program():
    return gathering()


@pytest.fixture(scope="module")
def shared_plan(program):
    return _core.build_plan(trace_of(*program), True, shares_spaces=True)


def test_a_shared_space_is_as_large_as_what_lives_at_once_on_all_streams(program, shared_plan):
    apart = _core.build_plan(trace_of(*program), True)
    assert apart["role_space"].tolist() == [0, 1]
    assert shared_plan["role_space"].tolist() == [0, 0]
    assert shared_plan["arena_bytes"][1] == 0
    assert shared_plan["arena_bytes"].sum() <= 94 * MIB < 150 * MIB < apart["arena_bytes"].sum()


def test_a_whole_run_is_served_and_no_byte_is_reused_unsafely(program, shared_plan):
    history, marks = program
    run = shared_run(history, marks, shared_plan)
    assert drive(run, marks) == ""
    stats = run.engine.stats()
    assert stats["slot_hits"] == stats["requests"] > 150
    assert stats["extent_bytes"] <= shared_plan["arena_bytes"].sum() + GRANULE
    assert 0 < stats["handover_waits"] <= stats["handover_fences"]


def test_events_are_recorded_only_where_memory_changes_its_stream(program, shared_plan):
    history, marks = program
    run = shared_run(history, marks, shared_plan)
    assert drive(run, marks) == ""
    stats = run.engine.stats()
    num_steps, num_streams = len(marks) - 1, 2
    assert stats["requests"] / num_steps > 25
    assert stats["handover_fences"] / num_steps <= 11 * num_streams
    apart = shared_run(history, marks, _core.build_plan(trace_of(history, marks), True))
    assert drive(apart, marks) == ""
    assert apart.engine.stats()["handover_fences"] == 0


def test_a_stream_that_does_not_really_wait_is_caught(program, shared_plan):
    history, marks = program
    run = shared_run(history, marks, shared_plan)
    run.set_faults(drops_waits=True)
    assert "another stream" in drive(run, marks)


def test_handover_in_a_host_that_was_not_audited_is_caught(program, shared_plan):
    history, marks = program
    assert "another stream" in drive(shared_run(history, marks, shared_plan, audited=False), marks)


def test_without_leave_nothing_is_handed_over_whatever_the_plan_says(program, shared_plan):
    history, marks = program
    run = shared_run(history, marks, shared_plan, audited=False, allowed=False)
    assert drive(run, marks) == ""
    stats = run.engine.stats()
    assert stats["handover_fences"] == stats["handover_waits"] == 0
    assert stats["fallbacks"]["unfenced"] > 0
    assert stats["slot_hits"] > 0


@pytest.mark.parametrize("fault", ["refuses_fences", "is_capturing"])
def test_without_events_the_slot_is_refused_and_the_upstream_serves(program, shared_plan, fault):
    history, marks = program
    run = shared_run(history, marks, shared_plan)
    assert drive(run, marks[:4]) == ""
    before = run.engine.stats()
    run.set_faults(**{fault: True})
    assert drive(run, marks[3:6]) == ""
    during = run.engine.stats()
    assert during["fallbacks"]["unfenced"] > before["fallbacks"]["unfenced"]
    assert during["handover_fences"] == before["handover_fences"]
    run.set_faults()
    assert drive(run, marks[5:]) == ""
    assert run.engine.stats()["handover_waits"] > during["handover_waits"]


def test_with_more_streams_than_can_be_waited_for_nothing_is_handed_over(program, shared_plan):
    history, marks = program
    run = shared_run(history, marks, shared_plan)
    for stream in range(100, 130):
        run.engine.follow_stream(stream)
    run.engine.set_handover(True)
    assert drive(run, marks) == ""
    stats = run.engine.stats()
    assert stats["handover_waits"] == 0 and stats["fallbacks"]["unfenced"] > 0


def test_a_new_stream_is_waited_for_too():
    history, marks = gathering()
    plan = _core.build_plan(trace_of(history, marks), True, shares_spaces=True)
    late, late_marks = gathering()
    at = late_marks[4] + 7
    late.allocate(5 * MIB, 9)
    late.rows.insert(at, late.rows.pop())
    late_marks = [mark + (mark > at) for mark in late_marks]
    run = shared_run(late, late_marks, plan)
    assert drive(run, late_marks) == ""
    assert run.engine.stats()["slot_hits"] >= 150


def test_a_recorded_block_comes_back_before_another_stream_may_have_it():
    history, marks = History(), []
    history.free(history.allocate(512, MAIN), history.allocate(512, GATHER))
    for _ in range(6):
        marks.append(len(history.rows))
        block = history.allocate(16 * MIB, MAIN)
        history.request_free(block)  # recorded on another stream: its completion comes later
        history.free(*[history.allocate(512, MAIN) for _ in range(40)])
        history.complete_free(block)
        history.free(*[history.allocate(512, MAIN) for _ in range(200)])
        history.free(history.allocate(16 * MIB, GATHER))
    marks.append(len(history.rows))
    plan = _core.build_plan(trace_of(history, marks), True, shares_spaces=True)
    assert plan["arena_bytes"].sum() < 18 * MIB
    run = shared_run(history, marks, plan)
    assert drive(run, marks) == ""
    assert run.engine.stats()["handover_waits"] > 0


def recorded_and_wanted_again(reader: int, next_stream: int) -> tuple[History, list[int], dict]:
    """A large block that another stream was recorded to read, and the next one in its place before that stream is done; and a
    plan that foretold it done by then."""
    def written(is_late: bool) -> tuple[History, list[int]]:
        history, marks = History(), []
        history.free(*[history.allocate(512, stream) for stream in (MAIN, reader)])
        for _ in range(6):
            marks.append(len(history.rows))
            block = history.allocate(16 * MIB, MAIN)
            history.request_free(block)
            if not is_late:
                history.complete_free(block)
            after = history.allocate(16 * MIB, next_stream)
            if is_late:
                history.complete_free(block)
            history.free(after)
        return history, [*marks, len(history.rows)]

    plan = _core.build_plan(trace_of(*written(False)), True, shares_spaces=next_stream != MAIN)
    assert plan["arena_bytes"].sum() < 18 * MIB
    return *written(True), plan


@pytest.mark.parametrize("next_stream", [MAIN, GATHER])
def test_a_stream_waits_on_the_device_for_one_that_was_recorded_to_read_its_bytes(next_stream):
    history, marks, plan = recorded_and_wanted_again(GATHER, next_stream)
    run = shared_run(history, marks, plan, audited=next_stream != MAIN, allowed=next_stream != MAIN)
    assert drive(run, marks) == ""
    stats = run.engine.stats()
    assert stats["slot_hits"] == stats["requests"] and stats["awaiting_bytes"] == 0
    assert stats["reuse_waits" if next_stream == MAIN else "handover_waits"] >= 6
    run = shared_run(history, marks, plan, audited=next_stream != MAIN, allowed=next_stream != MAIN)
    run.set_faults(drops_waits=True)
    assert "unsafe reuse" in drive(run, marks)


@pytest.mark.parametrize("fault", ["refuses_fences", "is_capturing"])
@pytest.mark.parametrize("next_stream", [MAIN, GATHER])
def test_what_a_recorded_stream_reads_stays_where_no_stream_can_be_made_to_wait(fault, next_stream):
    history, marks, plan = recorded_and_wanted_again(GATHER, next_stream)
    run = shared_run(history, marks, plan, audited=next_stream != MAIN, allowed=next_stream != MAIN)
    run.set_faults(**{fault: True})
    assert drive(run, marks) == ""
    stats = run.engine.stats()
    assert stats["reuse_waits"] == stats["handover_waits"] == 0
    assert sum(stats["fallbacks"].values()) >= 6


def test_what_is_left_of_a_recorded_block_keeps_its_own_stream_waiting_too():
    def written(is_late: bool) -> tuple[History, list[int]]:
        history, marks = History(), []
        history.free(*[history.allocate(512, stream) for stream in (MAIN, GATHER)])
        for _ in range(6):
            marks.append(len(history.rows))
            block = history.allocate(16 * MIB, MAIN)  # GATHER was recorded to read it
            history.request_free(block)
            if not is_late:
                history.complete_free(block)
            parts = [history.allocate(8 * MIB, stream) for stream in (GATHER, MAIN)]
            if is_late:
                history.complete_free(block)
            history.free(*parts)
        return history, [*marks, len(history.rows)]

    plan = _core.build_plan(trace_of(*written(False)), True, shares_spaces=True)
    assert plan["arena_bytes"].sum() < 18 * MIB
    history, marks = written(True)
    run = shared_run(history, marks, plan)
    assert drive(run, marks) == ""
    assert run.engine.stats()["slot_hits"] == run.engine.stats()["requests"]


def trimmed(**faults) -> tuple[bool, object]:
    """A run that has ended, all of it freed; whether its extent then went back, and the run."""
    history, marks = gathering(num_weights=0)
    plan = _core.build_plan(trace_of(history, marks), True, shares_spaces=True)
    run = shared_run(history, marks, plan)
    assert run.advance(marks[-1])
    run.engine.deactivate()
    run.set_faults(**faults)
    return run.engine.trim(True) > 0, run


def test_an_empty_extent_goes_back_when_its_stream_has_waited_for_the_others():
    went_back, run = trimmed()
    assert went_back and run.upstream_offence == ""
    assert run.engine.stats()["extent_bytes"] == 0


@pytest.mark.parametrize("fault", ["refuses_fences", "is_capturing"])
def test_an_empty_extent_stays_while_its_stream_cannot_wait(fault):
    went_back, run = trimmed(**{fault: True})
    assert not went_back and run.engine.stats()["extent_bytes"] > 0
    run.set_faults()
    assert run.engine.trim(True) > 0
    assert run.upstream_offence == ""


def test_an_extent_that_goes_back_without_the_wait_is_caught():
    went_back, run = trimmed(drops_waits=True)
    assert went_back and "another stream" in run.upstream_offence


def test_a_longer_step_is_placed_anew_in_a_space_that_stays_shared():
    history, marks = History(), []
    history.free(history.allocate(512, MAIN), history.allocate(512, GATHER))
    for length in (900, 1000, 950, 980, 920, 990, 1300, 1250, 1300, 900):
        marks.append(len(history.rows))
        batch = history.allocate(8 * length)
        activations = []
        for _ in range(8):
            gathered = history.allocate(8 * MIB, GATHER)
            activations.append(history.allocate(4096 * length))
            history.free(gathered)
        history.free(history.allocate(65536 * length), *activations, batch)
        history.free(history.allocate(72 * MIB, GATHER))
    marks.append(len(history.rows))
    plan = _core.build_plan(trace_of(history, marks), True, shares_spaces=True)
    run = shared_run(history, marks, plan)
    assert drive(run, marks) == "" and run.upstream_offence == ""
    grown = run.engine.plan()
    assert grown["role_space"].tolist() == [0, 0]
    assert grown["arena_bytes"][0] > 1.1 * plan["arena_bytes"][0] and grown["arena_bytes"][1] == 0
    assert run.engine.stats()["slot_hits"] > 0.9 * run.engine.stats()["requests"]


def two_runs(core, folder, **more):
    """The run that profiles and the one that finds its plan."""
    handover = more.pop("handover", "audited")
    config = StallocConfig(cache_dir=str(folder), log_level="error", handover=handover)
    first, second = (replay(core, "stalloc", config=config, name=handover, **more) for _ in range(2))
    assert first.activated_at_step > 0 and second.activated_at_step == 0
    return first, second


def test_a_replay_with_an_audited_host_needs_less_and_is_safe(program, tmp_path):
    history, marks = program
    core = history.core(tuple(marks))
    apart = two_runs(core, tmp_path / "apart")
    shared = two_runs(core, tmp_path / "shared", handover_audited=True)
    refused = two_runs(core, tmp_path / "refused", handover="none", handover_audited=True)
    for of_shared, of_apart, of_refused in zip(shared, apart, refused, strict=True):
        assert of_shared.summary["plan"]["arena_bytes"] < 0.7 * of_apart.summary["plan"]["arena_bytes"]
        assert of_refused.summary["plan"]["arena_bytes"] == of_apart.summary["plan"]["arena_bytes"]


def test_a_session_that_vouches_for_an_unaudited_host_is_caught_by_the_replay(program, tmp_path):
    history, marks = program
    core = history.core(tuple(marks))
    two_runs(core, tmp_path, handover_audited=True)
    run = _core.SimulatedRun(core, {"handover_audited": False})
    session = ReplaySession(run, StallocConfig(cache_dir=str(tmp_path), log_level="error", handover="audited"),
                            "audited")
    session.vouch_for_streams()
    with session:
        for mark in marks[1:]:
            if not run.advance(mark):
                break
            session.step()
    assert "another stream" in run.offence


def test_a_plan_whose_roles_name_no_space_of_theirs_is_refused(shared_plan):
    for broken in ([0, 1, 1], [1, 0], [0, -1], [0]):
        with pytest.raises(ValueError, match="Plan refused: (role_space|arena)"):
            _core.check_plan(dict(shared_plan, role_space=np.array(broken, np.int32)))
    with pytest.raises(ValueError, match="slots of|shares bytes|Plan refused"):
        overlapping = dict(shared_plan, slot_offset=shared_plan["slot_offset"] * 0)
        _core.check_plan(overlapping)


def test_small_slots_keep_to_pages_of_their_stream(shared_plan):
    page = 64 << 10
    pages: dict[int, set[int]] = {MAIN: set(), GATHER: set()}
    for role, size, offset, kind in zip(*(shared_plan[f"slot_{name}"].tolist() for name in ("role", "size", "offset", "kind")),
                                        strict=True):
        if kind != 3 and size < MIB:
            pages[role] |= set(range(offset // page, (offset + size - 1) // page + 1))
    assert pages[MAIN] or pages[GATHER]
    assert not pages[MAIN] & pages[GATHER]


def test_a_stream_that_was_there_before_anything_was_served_is_waited_for_too():
    history, marks = gathering()
    plan = _core.build_plan(trace_of(history, marks), True, shares_spaces=True)
    early, marks = gathering()
    early.allocate(5 * MIB, 9)
    early.rows.insert(0, early.rows.pop())
    run = _core.SimulatedRun(early.core(), {"handover_audited": True})
    assert run.advance(1)  # nobody records and nobody serves
    run.engine.set_handover(True)
    run.engine.arm(plan, 0)
    assert drive(run, [mark + 1 for mark in marks]) == ""
    stats = run.engine.stats()
    assert stats["handover_waits"] > 0 and stats["handover_fences"] % 3 == 0


def test_an_idle_extent_that_makes_way_for_a_longer_step_is_waited_for():
    history, marks = History(), []
    weights = [history.allocate(3 * MIB) for _ in range(2)]  # hold the first extent, beside which longer steps take others
    history.free(history.allocate(512, MAIN), history.allocate(512, GATHER))
    for length in (100, 110, 105, 108, 106, 200, 300, 400):
        marks.append(len(history.rows))
        batch = history.allocate(8 * length)
        history.free(*[history.allocate(65536 * length, stream) for stream in (MAIN, GATHER)], batch)
    marks.append(len(history.rows))
    plan = _core.build_plan(trace_of(history, marks), True, shares_spaces=True)
    run = shared_run(history, marks, plan)
    assert drive(run, marks) == "" and run.upstream_offence == ""
    assert weights and run.engine.plan()["arena_bytes"].sum() > 3 * plan["arena_bytes"].sum()


class RandomProgram:
    """Steps of a few phases over several streams. Sizes follow a length, lives are short or long, other streams are recorded."""

    LONGEST = 60

    def __init__(self, seed: int, num_streams: int) -> None:
        draw = random.Random(seed)
        sizes, lives = (512, 70_000, 1 << 20, 3 << 20, 9 << 20), (1, 2, 5, 30, 90)
        self.phases = [[(draw.choice(sizes), draw.choice((0, 0, 0, 2048, 65_536)), draw.randrange(num_streams),
                         draw.choice(lives), draw.random() < 0.1) for _ in range(draw.randrange(15, 90))]
                       for _ in range(draw.randrange(1, 3))]
        self.num_streams = num_streams
        self.stray = random.Random(seed + 1)

    def written(self, lengths: list[int], num_strays: int = 0) -> tuple[History, list[int]]:
        history, marks, dying, waiting, clock = History(), [], {}, [], 0
        for step, length in enumerate(lengths):
            marks.append(len(history.rows))
            requests = [(8 * length, 0, 0, 1000, False), *self.phases[step % len(self.phases)]]
            for _ in range(self.stray.randrange(num_strays + 1)):
                requests.insert(self.stray.randrange(1, len(requests)), (self.stray.randrange(1, 12 << 20), 0,
                                self.stray.randrange(self.num_streams), self.stray.randrange(1, 60), False))
            for size, size_a_token, stream, life, is_recorded in requests:
                for address, waits in dying.pop(clock, []):
                    history.request_free(address)
                    if waits:
                        waiting.append(address)
                    else:
                        history.complete_free(address)
                while len(waiting) > 3:
                    history.complete_free(waiting.pop(0))
                address = history.allocate(size + size_a_token * length, stream)
                dying.setdefault(clock + life, []).append((address, is_recorded))
                clock += 1
        marks.append(len(history.rows))
        for address in waiting:
            history.complete_free(address)
        history.free(*(address for blocks in dying.values() for address, _ in blocks))
        return history, marks


def disturb(run, plan: dict, draw: random.Random) -> None:
    """What a session may do between any two requests, in the wrong order and too often."""
    engine = run.engine
    for action in draw.sample((lambda: engine.arm(plan, draw.randrange(6)), engine.deactivate, lambda: engine.trim(draw.random() < 0.5),
                               engine.end_step, engine.poll_fences, lambda: engine.set_serve_gaps(draw.random() < 0.8),
                               lambda: run.set_faults(refuses_fences=draw.random() < 0.2, is_capturing=draw.random() < 0.2)), 2):
        action()


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32), st.integers(2, 4), st.integers(0, 2), st.booleans())
@example(4925, 2, 1, True)  # an extent goes back between a free and what the trace has as its end
def test_random_programs_over_several_streams_are_served_safely_and_lose_no_memory(seed, num_streams, wrong_plan, is_disturbed):
    draw = random.Random(seed)
    program = RandomProgram(seed, num_streams)
    planned = program if wrong_plan else RandomProgram(seed + 1, num_streams)
    recorded = trace_of(*planned.written([draw.randrange(8, 30) for _ in range(6)]), 6)
    try:
        plan = _core.build_plan(recorded, draw.random() < 0.5, 0.05, shares_spaces=True)
    except ValueError as error:  # phases that take turns look like one whose sizes grow beyond all bounds
        assert "1 TiB" in str(error)
        return
    history, marks = program.written([draw.randrange(8, program.LONGEST) for _ in range(9)], num_strays=3)
    run = _core.SimulatedRun(history.core(tuple(marks)), {"handover_audited": True})
    run.engine.set_handover(True)
    if draw.random() < 0.5:
        run.engine.start_recording(1 << 14)
    late = draw.randrange(40) if draw.random() < 0.5 else 0
    assert run.advance(late)
    run.engine.arm(plan, 0)
    for mark in marks[1:]:
        if is_disturbed:
            assert run.advance(draw.randrange(mark + 1)), run.offence
            disturb(run, plan, draw)
        assert run.advance(mark), run.offence
        run.engine.end_step()
    assert run.advance(len(history.rows)), run.offence
    run.set_faults()
    run.engine.poll_fences()
    run.engine.deactivate()
    run.finish_streams()
    run.engine.poll_fences()
    assert run.engine.stats()["served_bytes"] == run.engine.stats()["awaiting_bytes"] == 0
    run.engine.trim(True)
    assert run.engine.stats()["extent_bytes"] == 0
    assert run.upstream_offence == ""


def test_threads_may_hand_memory_over_at_once():
    step = training_step(3, num_layers=10, num_streams=3)
    host = _core.HostEngine(1 << 30)
    host.engine.start_recording(1 << 16)
    runner = Runner(host)
    for stream in range(3):
        host.free(host.allocate(512, stream))
    for _ in range(4):
        runner.run(step)
        host.engine.end_step()
    plan = _core.build_plan(host.engine.recorded(), True, shares_spaces=True)
    runner.free_all()
    host.engine.stop_recording()
    host.engine.set_handover(True)
    host.engine.arm(plan, 0)

    def end_step() -> None:
        host.engine.end_step()
        host.engine.trim(True)

    allocate_from_threads(host, (512, 70_000, 1 << 20, 3 << 20), 3, end_step, 30)
    stats = host.engine.stats()
    assert stats["served_bytes"] == 0 and stats["bad_frees"] == 0
    assert stats["handover_waits"] > 0
