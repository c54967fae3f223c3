"""Steps whose requests are reordered by threads, and blocks that threads free late: planned all the same."""

import random

import pytest

from programs import Free, Request, Runner, served_share, training_step
from stalloc_accel import _core

LIMIT = 1 << 30
TRAINER, OTHERS = 0, 1  # streams, as the CPU allocator tells threads apart


def interleaved(step: list, helper: list, draw: random.Random) -> list:
    """Both programs in their own order; where one stands between the other's parts is left to chance."""
    at = sorted(draw.randrange(len(step) + 1) for _ in helper)
    merged, taken = [], 0
    for index in range(len(step) + 1):
        while taken < len(helper) and at[taken] == index:
            merged.append(helper[taken])
            taken += 1
        merged += step[index:index + 1]
    return merged


def swapped(program: list, draw: random.Random) -> list:
    """Now and then, two neighbouring requests in the other order."""
    parts = list(program)
    for index in range(len(parts) - 1):
        if all(isinstance(part, Request) for part in parts[index:index + 2]) and draw.random() < 0.3:
            parts[index], parts[index + 1] = parts[index + 1], parts[index]
    return parts


def helper_step() -> list:
    """What a communication thread does in a step: buffers of many sizes that it frees itself."""
    return [part for index, size in enumerate((40_000, 300_000, 2_000, 9_000, 70_000, 512))
            for part in (Request(f"flat{index}", size, OTHERS), Request(f"copy{index}", 3 * size, OTHERS),
                         Free(f"flat{index}"), Free(f"copy{index}"))]


@pytest.mark.parametrize("seed", range(6))
def test_steps_that_two_threads_interleave_anew_are_served_from_their_slots(seed):
    draw = random.Random(seed)
    step, helper = training_step(seed), helper_step()
    host = _core.HostEngine(LIMIT)
    host.engine.start_recording(1 << 16)
    runner = Runner(host)
    for stream in (TRAINER, OTHERS):
        host.free(host.allocate(512, stream))
    for _ in range(4):
        runner.run(interleaved(step, swapped(helper, draw), draw))
        host.engine.end_step()
    trace = host.engine.recorded()
    plan = _core.build_plan(trace, False)
    assert (plan["slot_kind"] != 3).all(), "every request has its place"
    assert len(plan["variable_bytes"]) == 0, "another order is no other length"
    host.engine.arm(plan, 0)
    before = host.engine.stats()
    for _ in range(6):
        runner.run(interleaved(step, swapped(helper, draw), draw))
        host.engine.end_step()
    assert served_share(host, before) >= 0.99
