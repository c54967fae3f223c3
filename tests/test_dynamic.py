"""Steps that differ in the number and the sizes of their requests, as loops over experts make them."""

from __future__ import annotations

import dataclasses
import random

import numpy as np
import pytest

from programs import Free, Request, Runner, construction, peak_live_bytes
from routed_programs import RoutedModel, checkpointed_step, is_static, random_step, recorded, routed_step, routes
from stalloc_accel import _core

LIMIT = 2 << 30
MODEL = RoutedModel()
WIDE = RoutedModel(width=16 << 10)  # most of what is routed is larger than what is small
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


def test_experts_that_all_get_their_share_every_time_are_not_taken_for_lengths(seed):
    """Each step makes as many requests, and each expert's share would be a variable, planned at the largest it ever was."""
    draw = random.Random(seed)
    trace = recorded([routed_step(routes(draw, WIDE, tokens, 1.0), tokens, WIDE) for tokens in (300, 400, 320, 350, 280, 380, 300)], 8 << 30)
    plan = _core.build_plan(trace, True)
    assert (plan["slot_kind"] == ROOM).any()
    assert plan["arena_bytes"].sum() <= 1.25 * peak_live_bytes(trace)


@pytest.mark.parametrize("seed_of_steps", range(6))
def test_few_experts_that_all_get_their_share_are_not_taken_for_by_products_of_the_batch(seed_of_steps):
    draw = random.Random(seed_of_steps)
    model = RoutedModel(num_layers=2, num_experts=4, width=32 << 10)
    trace = recorded([routed_step(routes(draw, model, tokens, 1.0), tokens, model) for tokens in (300, 400, 320, 350, 280, 380, 300)], 8 << 30)
    assert (_core.build_plan(trace, True)["slot_kind"] == ROOM).any()


@pytest.mark.parametrize("seed_of_steps", range(6))
def test_no_room_is_kept_beside_the_largest_requests_for_what_never_lives_then(seed_of_steps):
    """The last layer's passes end right before the logits come, and each loop has another length."""
    draw = random.Random(seed_of_steps)
    steps = [checkpointed_step(routes(draw, WIDE, tokens), tokens, WIDE) for tokens in (300, 400, 250, 380, 200, 390, 320)]
    trace = recorded(steps, 8 << 30)
    plan = _core.build_plan(trace, True)
    kinds, births, deaths, sizes = (plan[f"slot_{name}"] for name in ("kind", "birth", "death", "size"))
    is_room = (kinds == ROOM) & (sizes >= 1 << 20)
    assert is_room.any()
    [loss] = births[(kinds < UNPLANNED) & (sizes == 32 * WIDE.width * 400)]
    assert not (is_room & (births <= loss) & (deaths > loss)).any()
    assert plan["arena_bytes"].sum() <= 1.07 * peak_live_bytes(trace)


@pytest.mark.parametrize("seed_of_steps", [0, 1, 5, 7])
def test_where_all_batches_are_of_one_length_room_is_not_scaled_by_what_an_expert_gets(seed_of_steps):
    draw = random.Random(seed_of_steps)
    trace = recorded([checkpointed_step(routes(draw, WIDE, 400, 0.8), 400, WIDE) for _ in range(7)], 8 << 30)
    assert _core.build_plan(trace, True)["arena_bytes"].sum() <= 1.2 * peak_live_bytes(trace)


def test_a_request_whose_slot_is_in_use_gets_that_of_a_later_pass_of_the_loop(seed):
    """Some experts' gradients are kept over the step, and the next step makes as many passes less."""
    draw = random.Random(seed)

    def step_of(num_passes: int) -> list:
        step = [Request("static.batch", 16 << 10)]
        for index in range(num_passes):
            step += [Request(f"one{index}", 512), Request(f"in{index}", draw.randrange(1, 64) << 12), Request(f"grad{index}", 64 << 10),
                     Free(f"in{index}"), Free(f"one{index}")]
        return [*step, Request("static.end", 12 << 20), *(Free(part.name) for part in step if isinstance(part, Request)), Free("static.end")]
    plan = _core.build_plan(recorded([step_of(48 - index % 3) for index in range(7)], 8 << 30), True)
    assert (plan["slot_kind"] == ROOM).any()
    host, runner = served(plan)
    runner.run(step_of(48))
    host.engine.end_step()
    for _ in range(6):
        kept = [f"grad{index}" for index in draw.sample(range(36), 8)]
        runner.run([part for part in step_of(48) if not (isinstance(part, Free) and part.name in kept)])
        host.engine.end_step()
        for name in kept:
            runner.live[f"kept.{name}"] = runner.live.pop(name)
        runner.run(step_of(40))
        host.engine.end_step()
        runner.run([Free(f"kept.{name}") for name in kept])
    assert host.engine.stats()["fallbacks"]["slot_busy"] <= 60  # some have none behind them


@pytest.mark.parametrize("seed_of_steps", range(4))
def test_large_requests_in_a_row_behind_a_loop_that_ended_early_get_a_slot_each(seed_of_steps):
    draw = random.Random(seed_of_steps)

    def step_of(num_passes: int) -> list:
        step = [Request("static.batch", 16 << 10)]
        for index in range(num_passes):
            step += [Request(f"one{index}", 512), Request(f"in{index}", draw.randrange(1, 64) << 12), Free(f"one{index}"),
                     Request(f"grad{index}", 2 << 20), Free(f"in{index}"), Free(f"grad{index}")]
        return [*step, *(Request(f"static.{index}", 48 << 20) for index in range(3)), *(Free(f"static.{index}") for index in range(3)), Free("static.batch")]
    host, runner = served(_core.build_plan(recorded([step_of(30 + index % 2) for index in range(7)], 8 << 30), True))
    for _ in range(8):
        before = host.engine.stats()
        runner.run(step_of(draw.randrange(8, 25)))
        host.engine.end_step()
        assert host.engine.stats()["slot_hit_bytes"] - before["slot_hit_bytes"] >= 3 * (48 << 20)


def test_each_micro_step_of_an_accumulation_is_planned_for_its_own_longest_batch(seed):
    draw = random.Random(seed)

    def step_of(lengths: tuple[int, int]) -> list:
        return [dataclasses.replace(part, name=f"{micro}{part.name}") for micro, tokens in enumerate(lengths)
                for part in routed_step(routes(draw, MODEL, tokens), tokens, MODEL)]
    plan = _core.build_plan(recorded([step_of(lengths) for lengths in ((300, 250), (400, 220), (260, 300), (350, 240), (280, 290), (390, 230))]), True)
    assert (plan["slot_kind"] == ROOM).any()
    batches = [plan["variable_bytes"][variable] for variable in plan["slot_variable"][(plan["slot_defines"] != 0) & (plan["slot_kind"] < UNPLANNED)]]
    assert max(batches) == 32 * 400
    assert 32 * 300 in batches


def test_small_slots_lie_apart_from_those_that_they_could_keep_from_large_requests(seed):
    draw = random.Random(seed)
    plan = _core.build_plan(recorded([random_step(draw, WIDE) for _ in range(6)], 8 << 30), True)
    begin, size, kind = (plan[f"slot_{name}"] for name in ("offset", "size", "kind"))
    is_small = (kind < 2) & (size < 1 << 20)
    is_large = (kind < 2) & (size >= 1 << 20)
    assert is_small.sum() > 20 and is_large.sum() > 20
    strip = begin[is_small].min(), (begin + size)[is_small].max()
    assert strip[1] - strip[0] < plan["arena_bytes"].sum() / 8
    assert not ((begin < strip[1]) & (begin + size > strip[0]) & is_large).any()


def test_a_plan_of_routed_steps_is_little_larger_than_the_steps(seed):
    draw = random.Random(seed)
    trace = recorded([random_step(draw) for _ in range(6)])
    arena = int(_core.build_plan(trace, True)["arena_bytes"].sum())
    assert arena <= 2 * peak_live_bytes(trace)


@pytest.mark.parametrize("seed_of_steps", [0, 1, 3, 5])
def test_rooms_are_kept_for_the_longest_batch_once_whatever_the_lengths_of_the_others(seed_of_steps):
    """Requests that a short batch makes small grow with it; nor do the first steps keep places beside the rooms."""
    draw = random.Random(seed_of_steps)
    trace = recorded([routed_step(routes(draw, WIDE, tokens), tokens, WIDE) for tokens in (300, 400, 100, 130, 350, 120, 380)], 8 << 30)
    assert int(_core.build_plan(trace, True)["arena_bytes"].sum()) <= 1.18 * peak_live_bytes(trace)


def grown_run(seed: int, whole: bool) -> tuple[dict, _core.HostEngine, Runner, random.Random]:
    """A run that is served by a plan for batches of three quarters of the longest one, and that one's plan."""
    draw = random.Random(seed)
    trace = recorded([routed_step(routes(draw, WIDE, tokens), tokens, WIDE) for tokens in (300, 400, 100, 350, 380)], 8 << 30)
    plan = _core.build_plan(trace, True)
    if not whole:
        plan = _core.without_prologue(plan)
    host = _core.HostEngine(8 << 30)
    host.engine.arm(_core.resized(plan, [value * 3 // 4 for value in plan["variable_bytes"].tolist()]), 0)
    runner = Runner(host)
    if whole:
        runner.run(construction())
    runner.run(routed_step(routes(draw, WIDE, 250), 250, WIDE))
    host.engine.end_step()
    return plan, host, runner, draw


def test_a_longer_batch_gets_one_new_extent_in_place_of_one_in_which_nothing_lives(seed):
    plan, host, runner, draw = grown_run(seed, whole=False)
    step = routed_step(routes(draw, WIDE, 400), 400, WIDE)
    end = next(i for i, part in enumerate(step) if part.name == "static.logits")
    runner.run(step[:end])
    # What is led by the batch's length is rounded up each time.
    assert np.abs(np.array(host.engine.planned_variable_bytes()) - plan["variable_bytes"]).max() <= 1
    assert len({block["extent"] for block in host.engine.blocks()}) == 1
    assert host.upstream_bytes() <= 1.1 * plan["arena_bytes"].sum()


def test_the_largest_of_the_slots_that_a_longer_batch_gets_lie_clear_of_small_blocks(seed):
    plan, host, runner, draw = grown_run(seed, whole=True)
    num_filling = int(plan["arena_bytes"].sum()) // (256 << 10) // 2
    runner.run([Request(f"stray{i}", 256 << 10) for i in range(num_filling)])
    runner.run([Free(f"stray{i}") for i in range(num_filling) if i % 150 != 50])  # what stays lies all over the arena
    [extent] = {block["extent"] for block in host.engine.blocks()}
    runner.run(routed_step(routes(draw, WIDE, 400), 400, WIDE))
    grown = host.engine.plan()
    assert grown["variable_bytes"].tolist() == plan["variable_bytes"].tolist()
    begin, end = np.array([place for name, place in runner.live.items() if name.startswith("stray")]).T - extent
    is_served = (begin >= 0) & (end <= grown["arena_bytes"].sum())
    assert is_served.any()
    begin, end = begin[is_served], end[is_served]
    large = (grown["slot_kind"] < UNPLANNED) & (grown["slot_size"] >= grown["arena_bytes"].sum() / 16)
    assert large.any()
    for offset, size in zip(grown["slot_offset"][large].tolist(), grown["slot_size"][large].tolist(), strict=True):
        assert not ((begin < offset + size) & (offset < end)).any()


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
