"""Steps that differ in the number and the sizes of their requests, as loops over experts make them."""

from __future__ import annotations

import random

import pytest

from programs import Free, Request, Runner, peak_live_bytes
from routed_programs import RoutedModel, is_static, random_step, recorded, routed_step, routes
from stalloc_accel import _core

LIMIT = 2 << 30
MODEL = RoutedModel()
UNPLANNED, ROOM = 3, 4  # SlotKind


def plan_of(seed: int, num_steps: int = 6) -> dict:
    draw = random.Random(seed)
    # The longest batch is among them, so that no step to come outgrows the plan.
    longest = routed_step(routes(draw, MODEL, 400), 400, MODEL)
    return _core.build_plan(recorded([*(random_step(draw) for _ in range(num_steps - 2)), longest, random_step(draw)]), True)


def served(plan: dict) -> tuple[_core.HostEngine, Runner]:
    """A run under way that is served by the period of `plan`."""
    host = _core.HostEngine(LIMIT)
    host.engine.arm(_core.without_prologue(plan), 0)
    return host, Runner(host)


def test_what_is_routed_has_no_slot_and_what_is_not_has_one(seed):
    plan = plan_of(seed)
    names = [part.name for part in random_step(random.Random(seed)) if isinstance(part, Request)]
    num_static = sum(name.startswith("static") for name in names)
    begin = int(plan["table_begin"][int(plan["num_prologue"])])
    kinds = plan["slot_kind"][plan["table_slots"][begin:]]
    assert (kinds == UNPLANNED).any()
    assert (kinds != UNPLANNED).sum() >= num_static


def test_steps_of_other_routings_are_served_from_slots_and_from_room_for_what_is_routed(seed):
    host, runner = served(plan_of(seed))
    draw = random.Random(f"other {seed}")
    num_static = 0
    for _ in range(20):
        step = random_step(draw)
        num_static += sum(isinstance(part, Request) and is_static(part) for part in step)
        runner.run(step)
        host.engine.end_step()
    stats = host.engine.stats()
    assert stats["slot_hits"] >= 0.6 * num_static  # in steps of 300 requests a loop's end is hard to tell from its middle
    assert stats["slot_hits"] + stats["gap_hits"] >= 0.99 * stats["requests"]
    runner.free_all()
    assert host.engine.stats()["served_bytes"] == 0


@pytest.mark.parametrize("share_used", [0.1, 0.4, 1.0], ids=["few passes", "half the passes", "all passes"])
def test_loops_of_any_length_need_little_more_than_the_arena(share_used, seed):
    host, runner = served(plan_of(seed))
    draw = random.Random(seed)
    runner.run(random_step(draw))
    host.engine.end_step()
    arena = host.engine.stats()["extent_bytes"]
    for _ in range(10):
        runner.run(routed_step(routes(draw, MODEL, 350, share_used), 350, MODEL))
        host.engine.end_step()
        assert host.upstream_bytes() <= 1.3 * arena
    runner.free_all()


@pytest.mark.parametrize("seed_of_steps", range(6))
def test_two_steps_of_one_length_by_chance_are_not_taken_for_all_alike(seed_of_steps):
    """The recording ends with the same routing twice, for batches of other lengths."""
    draw = random.Random(seed_of_steps)
    routed = routes(draw, MODEL, 300)
    others = [[[draw.randrange(1, 100) if count else 0 for count in layer] for layer in routed] for _ in range(2)]
    steps = [random_step(draw) for _ in range(4)] + [routed_step(other, tokens, MODEL) for other, tokens in zip(others, (250, 400), strict=True)]
    assert len(steps[-1]) == len(steps[-2])
    plan = _core.build_plan(recorded(steps), True)
    assert (plan["slot_kind"] == ROOM).any()


def test_a_plan_of_routed_steps_is_little_larger_than_the_steps(seed):
    draw = random.Random(seed)
    trace = recorded([random_step(draw) for _ in range(6)])
    arena = int(_core.build_plan(trace, True)["arena_bytes"].sum())
    assert arena <= 2 * peak_live_bytes(trace)


def test_a_program_that_never_follows_the_plan_is_served_without_overlap(seed):
    host, runner = served(plan_of(seed))
    draw = random.Random(seed)
    for _ in range(5):
        step = random_step(draw)
        requests = [part for part in step if isinstance(part, Request)]
        draw.shuffle(requests)
        runner.run(requests)  # Runner asserts that nothing live shares a byte
        runner.run([Free(part.name) for part in requests])
        host.engine.end_step()
    assert host.engine.stats()["served_bytes"] == 0
