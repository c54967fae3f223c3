"""The engine over host memory: recording, serving from a plan, falling back, giving back."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from programs import Free, Request, Runner, allocate_from_threads, construction, peak_live_bytes, served_share, training_step
from stalloc_accel import _core

LIMIT = 1 << 30
EXTENT_GRANULE = 2 << 20


def recorded_run(step, num_steps=4, prologue=(), num_streams=1):
    """Runs and records a program; the trace of all steps."""
    host = _core.HostEngine(LIMIT)
    host.engine.start_recording(1 << 16)
    runner = Runner(host)
    for stream in range(num_streams):
        host.free(host.allocate(512, stream))  # streams appear in order
    runner.run(list(prologue))
    for _ in range(num_steps):
        runner.run(step)
        host.engine.end_step()
    trace = host.engine.recorded()
    runner.free_all()
    return trace


def run_with(plan, step, num_steps=4, prologue=(), num_streams=1, host=None):
    host = host or _core.HostEngine(LIMIT)
    host.engine.arm(plan, 0)
    runner = Runner(host)
    for stream in range(num_streams):
        host.free(host.allocate(512, stream))
    runner.run(list(prologue))
    for _ in range(num_steps):
        runner.run(step)
        host.engine.end_step()
    return host, runner


def test_a_recording_holds_every_event_and_the_step_marks():
    step = training_step(1)
    trace = recorded_run(step, num_steps=3)
    num_requests = 3 * sum(isinstance(part, Request) for part in step) + 1
    assert (trace["event_size"] > 0).sum() == num_requests
    assert len(trace["step_begin"]) == 4
    assert trace["step_begin"][-1] == len(trace["event_size"])


def test_the_second_run_is_served_from_its_slots_from_the_first_request_on():
    step, first = training_step(2), construction()
    plan = _core.build_plan(recorded_run(step, prologue=first), True)
    host, runner = run_with(plan, step, num_steps=6, prologue=first)
    stats = host.engine.stats()
    assert stats["slot_hits"] == stats["requests"] > 0
    extent = host.upstream_bytes()
    assert plan["arena_bytes"].sum() < extent <= plan["arena_bytes"].sum() + EXTENT_GRANULE
    runner.free_all()
    assert host.engine.stats()["served_bytes"] == 0
    host.engine.deactivate()
    assert host.engine.trim() == extent
    assert host.upstream_bytes() == 0


def test_the_arena_is_no_larger_than_what_lives_at_once():
    step, first = training_step(3), construction()
    trace = recorded_run(step, prologue=first)
    plan = _core.build_plan(trace, True)
    assert plan["lower_bound_bytes"].sum() <= peak_live_bytes(trace)
    assert plan["arena_bytes"].sum() <= 1.15 * peak_live_bytes(trace)  # few large blocks cross the cut here


def test_a_run_that_is_under_way_is_served_without_the_blocks_it_holds_already():
    step, first = training_step(4), construction()
    host = _core.HostEngine(LIMIT)
    host.engine.start_recording(1 << 16)
    runner = Runner(host)
    runner.run(first)
    for _ in range(3):
        runner.run(step)
        host.engine.end_step()
    plan = _core.build_plan(host.engine.recorded(), False)
    assert plan["arena_bytes"].sum() < peak_live_bytes(host.engine.recorded())
    assert host.engine.activate(plan, 0)
    before = host.engine.stats()
    for _ in range(3):
        runner.run(step)
        host.engine.end_step()
    assert served_share(host, before) == 1.0
    runner.free_all()


def test_a_block_that_outlives_its_successors_birth_alternates_between_two_slots():
    host = _core.HostEngine(LIMIT)
    host.engine.start_recording(1 << 12)
    held = None
    for _ in range(4):
        out = host.allocate(1 << 20)
        if held is not None:
            host.free(held)  # `out = model(x)` frees the old output after the new one is there
        held = out
        host.free(host.allocate(4096))
        host.engine.end_step()
    plan = _core.build_plan(host.engine.recorded(), False)
    assert plan["num_period"] == 2
    assert host.engine.activate(plan, 0)
    before = host.engine.stats()
    for _ in range(5):
        out = host.allocate(1 << 20)
        host.free(held)
        held = out
        host.free(host.allocate(4096))
        host.engine.end_step()
    assert served_share(host, before) == 1.0
    host.free(held)


@pytest.mark.parametrize("extra", [1, 3])
def test_an_extra_request_costs_itself_and_at_most_one_slot_that_it_lies_in(extra):
    step = training_step(5)
    plan = _core.build_plan(recorded_run(step), True)
    disturbed = step[:10] + [Request(f"extra{i}", 12_345) for i in range(extra)] + step[10:]
    disturbed += [Free(f"extra{i}") for i in range(extra)]
    host, runner = run_with(plan, step, num_steps=2)
    before = host.engine.stats()
    runner.run(disturbed)
    host.engine.end_step()
    now = host.engine.stats()
    misses = now["requests"] - now["slot_hits"] - (before["requests"] - before["slot_hits"])
    assert extra <= misses <= 2 * extra
    assert now["fallbacks"]["unmatched"] - before["fallbacks"]["unmatched"] == extra
    runner.free_all()


def test_a_missing_request_costs_nothing():
    step = training_step(6)
    plan = _core.build_plan(recorded_run(step), True)
    missing = next(part.name for part in step if isinstance(part, Request) and part.size == 140_000)
    host, runner = run_with(plan, step, num_steps=2)
    before = host.engine.stats()
    runner.run([part for part in step if part.name != missing])
    assert served_share(host, before) == 1.0
    runner.free_all()


def test_a_request_that_the_plan_does_not_know_is_served_from_free_space_of_the_arena():
    plan = _core.build_plan(recorded_run(training_step(7)), True)
    host, runner = run_with(plan, training_step(7), num_steps=2)
    runner.free_all()
    bytes_before = host.upstream_bytes()
    unknown = [host.allocate((1 << 20) + 99_999) for _ in range(8)]
    assert host.upstream_bytes() == bytes_before
    assert all(host.owns(address) for address in unknown)
    assert host.engine.stats()["gap_hits"] == 8
    for address in unknown:
        host.free(address)


def test_pass_through_leaves_served_blocks_valid_and_serves_no_more():
    step, first = training_step(8), construction()
    plan = _core.build_plan(recorded_run(step, prologue=first), True)
    host, runner = run_with(plan, step, prologue=first)
    host.engine.deactivate()
    host.engine.set_serve_gaps(False)
    address = host.allocate(4096)
    assert not host.owns(address)
    host.free(address)
    assert host.engine.trim() == 0  # the weights live in it
    runner.free_all()
    assert host.engine.trim() > 0


def test_without_room_for_the_arena_the_upstream_serves_and_it_is_counted():
    step = training_step(9)
    plan = _core.build_plan(recorded_run(step), True)
    small = _core.HostEngine(int(plan["arena_bytes"].sum()) - 512)
    assert not small.engine.activate(plan, 0) or small.engine.stats()["extent_bytes"] == 0
    small.engine.arm(plan, 0)
    address = small.allocate(4096)
    assert not small.owns(address)
    assert small.engine.stats()["fallbacks"]["no_extent"] == 1
    small.free(address)


def test_ranges_stay_with_their_stream():
    step = training_step(10, num_streams=3)
    plan = _core.build_plan(recorded_run(step, num_streams=3), True)
    host, runner = run_with(plan, step, num_steps=4, num_streams=3)
    assert host.engine.stats()["slot_hits"] == host.engine.stats()["requests"]
    spans = {}
    for block in host.engine.blocks():
        spans.setdefault(block["stream"], set()).add(block["extent"])
    assert len(spans) == 3
    assert len(set.union(*spans.values())) == 3
    runner.free_all()


def test_a_block_used_by_another_stream_comes_back_only_when_that_stream_is_done():
    step = [Request("a", 1 << 19), Free("a")]
    plan = _core.build_plan(recorded_run(step), True)
    host, _ = run_with(plan, step, num_steps=2)
    address = host.allocate(1 << 19)
    host.record_stream(address, 77)
    host.free(address)
    assert host.engine.stats()["awaiting_bytes"] == 1 << 19
    host.engine.end_step()
    other = host.allocate(1 << 19)
    assert other != address
    assert host.engine.stats()["fallbacks"]["slot_busy"] == 1
    host.free(other)
    host.finish_stream(77)
    host.engine.end_step()
    assert host.engine.stats()["awaiting_bytes"] == 0
    again = host.allocate(1 << 19)
    assert again == address
    host.free(again)


def test_during_a_capture_no_fence_is_asked_for_and_the_block_waits():
    step = [Request("a", 1 << 20), Free("a")]
    plan = _core.build_plan(recorded_run(step), True)
    host, _ = run_with(plan, step, num_steps=2)
    address = host.allocate(1 << 20)
    host.record_stream(address, 5)
    host.set_capturing(True)
    host.free(address)
    host.engine.poll_fences()
    assert host.engine.stats()["awaiting_bytes"] == 1 << 20
    host.set_capturing(False)
    host.engine.poll_fences()  # recorded only now
    assert host.engine.stats()["awaiting_bytes"] == 1 << 20
    host.finish_stream(5)
    host.engine.poll_fences()
    assert host.engine.stats()["awaiting_bytes"] == 0


def test_a_plan_with_overlapping_slots_is_refused():
    plan = _core.build_plan(recorded_run(training_step(11)), True)
    placed = (plan["slot_kind"] != 3).nonzero()[0]
    broken = dict(plan, slot_offset=plan["slot_offset"].copy())
    broken["slot_offset"][placed] = 0
    with pytest.raises(ValueError, match="Plan refused"):
        _core.HostEngine(LIMIT).engine.arm(broken, 0)


def test_two_plans_after_each_other_leave_nothing_behind():
    host = _core.HostEngine(LIMIT)
    for seed in (12, 13):
        plan = _core.build_plan(recorded_run(training_step(seed)), True)
        _, runner = run_with(plan, training_step(seed), host=host)
        runner.free_all()
    host.engine.deactivate()
    host.engine.trim()
    assert host.upstream_bytes() == 0


def test_threads_may_allocate_free_and_change_plans_at_once():
    plan = _core.build_plan(recorded_run(training_step(14)), True)
    host = _core.HostEngine(LIMIT)
    host.engine.arm(plan, 0)

    def change_plans() -> None:
        host.engine.end_step()
        host.engine.deactivate()
        host.engine.trim()
        host.engine.arm(plan, 0)

    allocate_from_threads(host, (512, 4096, 140_000, 1 << 20), 1, change_plans, 40)
    assert host.engine.stats()["served_bytes"] == 0
    assert host.engine.stats()["bad_frees"] == 0


@settings(max_examples=40)
@given(st.integers(0, 2**32), st.integers(1, 3), st.booleans())
def test_random_programs_never_overlap_and_lose_no_memory(seed, num_streams, wrong_plan):
    draw = random.Random(seed)
    step, first = training_step(seed, num_layers=draw.randrange(2, 10), num_streams=num_streams), construction(3)
    planned = training_step(seed + 1, num_streams=num_streams) if wrong_plan else step
    plan = _core.build_plan(recorded_run(planned, prologue=first, num_streams=num_streams), draw.random() < 0.5)
    host = _core.HostEngine(LIMIT)
    host.engine.arm(plan, 0)
    runner = Runner(host)
    runner.run(first)
    for _ in range(5):
        program = list(step)
        for _ in range(draw.randrange(3)):
            at = draw.randrange(len(program))
            name = f"stray{draw.random()}"
            program.insert(at, Request(name, draw.randrange(1, 200_000), draw.randrange(num_streams)))
            program.insert(draw.randrange(at + 1, len(program) + 1), Free(name))
        runner.run(program)
        if draw.random() < 0.8:
            host.engine.end_step()
    runner.free_all()
    host.engine.deactivate()
    host.engine.trim()
    assert host.upstream_bytes() == 0


@pytest.mark.parametrize("num_steps", [2, 3, 5])
def test_steps_that_ask_for_nothing_are_refused_by_the_planner(num_steps):
    host = _core.HostEngine(LIMIT)
    host.engine.start_recording(1 << 12)
    Runner(host).run(construction())
    for _ in range(num_steps + 1):
        host.engine.end_step()
    with pytest.raises(ValueError, match="num_requests=0"):
        _core.build_plan(host.engine.recorded(), True)


@pytest.mark.parametrize("birth", [2**62, -(2**62)])
def test_a_position_without_a_slot_must_lie_on_the_timeline(birth):
    plan = _core.build_plan(recorded_run(training_step(1)), True)
    forged = {**plan, "slot_kind": plan["slot_kind"].copy(), "slot_birth": plan["slot_birth"].copy()}
    forged["slot_kind"][0], forged["slot_birth"][0] = 3, birth
    with pytest.raises(ValueError, match="slot.birth"):
        _core.check_plan(forged)
