"""The gap finder against a search of every granule: random plans, random blocks in use, random spans."""

import random

import numpy as np
import pytest

from stalloc_accel._core import BlockMap, GapFinder
from stored_plans import plan_of

GRANULE = 512
PLACED, PERSISTENT, UNPLANNED, ROOM = 0, 2, 3, 4
NUM_TICKS = 400


def random_plan(draw: random.Random, num_granules: int, num_slots: int) -> dict:
    """Slots anywhere in space and time, two spaces, some without a place, some that go on in the next turn."""
    slots = []
    for _ in range(num_slots):
        size = min(draw.choice((1, 1, 2, 5, 20, 100)), num_granules)
        birth = draw.randrange(NUM_TICKS)
        kind = draw.choices((PLACED, UNPLANNED, ROOM), (8, 1, 1))[0]
        slots.append((size * GRANULE, draw.randrange(num_granules - size + 1) * GRANULE, birth,
                      birth + draw.choice((1, 3, 30, NUM_TICKS)), draw.randrange(2), kind))
    size, offset, birth, death, role, kind = (np.array(column) for column in zip(*slots))
    count = len(slots)
    return plan_of(4) | {
        "num_roles": 2, "window_begin": 50, "window_end": NUM_TICKS, "role_space": np.array([0, 1], np.int32),
        "arena_bytes": np.full(2, num_granules * GRANULE), "lower_bound_bytes": np.zeros(2, np.int64),
        "slot_size": size, "slot_offset": offset, "slot_birth": birth, "slot_death": death,
        "slot_role": role.astype(np.int32), "slot_kind": kind.astype(np.uint8), "slot_base": np.zeros(count),
        "slot_slope": np.zeros(count), "slot_variable": np.full(count, -1, np.int32), "slot_defines": np.zeros(count, np.uint8),
    }


def needed(plan: dict, space: int, now: int, until: int, num_granules: int) -> np.ndarray:
    """By granule of the space: whether a slot that covers it is born in (now, until)."""
    mask = np.zeros(num_granules, bool)
    begin, end = plan["window_begin"], plan["window_end"]
    wrapped = min(begin + until - end, now) if until > end else begin
    for offset, size, birth, role, kind in zip(*(plan[f"slot_{name}"] for name in ("offset", "size", "birth", "role", "kind"))):
        if role == space and kind not in (UNPLANNED, ROOM) and (now < birth < until or begin <= birth < wrapped):
            mask[offset // GRANULE:(offset + size) // GRANULE] = True
    return mask


def runs(mask: np.ndarray) -> list[tuple[int, int]]:
    edges = np.flatnonzero(np.diff(np.concatenate([[0], mask.astype(np.int8), [0]])))
    return list(zip(edges[::2].tolist(), edges[1::2].tolist()))


class Range:
    """A map and the granules that are free in it."""

    def __init__(self, num_granules: int) -> None:
        self.map, self.free, self.live = BlockMap(num_granules * GRANULE, 8192), np.ones(num_granules, bool), {}

    def take(self, start: int, length: int) -> None:
        assert self.map.take_at(start * GRANULE, length * GRANULE)
        self.free[start:start + length] = False
        self.live[start] = length

    def change(self, draw: random.Random) -> None:
        if self.live and draw.random() < 0.45:
            start = draw.choice(list(self.live))
            self.map.release(start * GRANULE)
            self.free[start:start + self.live.pop(start)] = True
            return
        start, length = draw.randrange(len(self.free)), draw.choice((1, 2, 5, 30, 200))
        if self.free[start:start + length].sum() == length:
            self.take(start, length)


@pytest.mark.parametrize("seed", range(40))
def test_the_gap_is_the_smallest_that_is_free_now_and_idle_in_the_plan_for_the_span(seed):
    draw = random.Random(seed)
    num_granules = draw.choice((40, 700, 3000))
    space_granules = num_granules + draw.choice((0, 500))  # the map may be the space's second extent
    begin = space_granules - num_granules
    plan = random_plan(draw, space_granules, draw.choice((1, 30, 600)))
    finder, extent = GapFinder(plan), Range(num_granules)
    num_found = num_none = num_crowded = 0
    now = 0
    for _ in range(150):
        extent.change(draw)
        now = now + draw.randrange(3) if draw.random() < 0.95 else draw.randrange(NUM_TICKS)  # steps begin anew
        space, until = draw.randrange(2), now + draw.choice((0, 1, 2, 10, 60, 300, 2 * NUM_TICKS))
        length = draw.choice((1, 1, 2, 4, 9, 33, 150, 1000))
        idle = extent.free & ~needed(plan, space, now, until, space_granules)[begin:]
        fitting = sorted(end - start for start, end in runs(idle) if end - start >= length)
        found = finder.find(extent.map, space, begin * GRANULE, length * GRANULE, now, until)
        if not fitting:
            assert found is None
            num_none += 1
            continue
        start, size = found[0] // GRANULE, found[1] // GRANULE
        assert idle[start:start + length].all(), "it is in use, or will be"
        assert (start, start + size) in runs(idle)
        num_blocks = sum(end - start >= length for start, end in runs(extent.free))
        if num_blocks <= GapFinder.MAX_LOOKS:
            assert size == fitting[0], "a smaller gap would have done"
        num_crowded += num_blocks > GapFinder.MAX_LOOKS
        num_found += 1
        if draw.random() < 0.5:
            extent.take(start, length)
    extent.map.check_invariants()
    assert num_found + num_none == 150 and num_found > 10


def test_among_thousands_of_free_blocks_the_gap_is_of_the_smallest_that_fit():
    num_granules = 40_000
    plan = random_plan(random.Random(1), num_granules, 300)
    finder, extent = GapFinder(plan), Range(num_granules)
    for start in range(0, num_granules, 16):
        extent.take(start, 1 + start // 16 % 15)  # free blocks of 1 to 15 granules
    for length in (1, 7, 15):
        idle = extent.free & ~needed(plan, 0, 10, 40, num_granules)
        whole = [size for size in (end - start for start, end in runs(idle)) if size >= length]
        offset, size = finder.find(extent.map, 0, 0, length * GRANULE, 10, 40)
        assert size == min(whole) * GRANULE and idle[offset // GRANULE:offset // GRANULE + length].all()
    assert finder.find(extent.map, 0, 0, 16 * GRANULE, 10, 40) is None


def test_the_largest_slots_to_come_and_what_will_last_are_spared_while_there_is_other_room():
    """100 granules: the lower half is idle, then a slot that lasts for ever, one that is small and one that is large."""
    slots = [(10, 50, 50, NUM_TICKS, PERSISTENT), (2, 60, 300, 310, PLACED), (30, 70, 300, 310, PLACED)]
    size, offset, birth, death, kind = (np.array(column) for column in zip(*slots))
    plan = random_plan(random.Random(0), 100, len(slots)) | {
        "slot_size": size * GRANULE, "slot_offset": offset * GRANULE, "slot_birth": birth, "slot_death": death,
        "slot_kind": kind.astype(np.uint8), "slot_role": np.zeros(len(slots), np.int32),
        "arena_bytes": np.array([100 * GRANULE, 0])}
    finder, extent = GapFinder(plan), Range(100)

    def found(now: int, until: int, sparing: bool) -> tuple[int, int] | None:
        gap = finder.find(extent.map, 0, 0, GRANULE, now, until, sparing)
        return gap and (gap[0] // GRANULE, gap[1] // GRANULE)

    assert found(60, 70, False) == (0, 100)
    assert found(60, 70, True) == (60, 10)  # the small slot's place too: it is needed much later
    extent.take(0, 50)
    extent.take(60, 10)
    assert found(60, 70, True) is None
    assert found(60, 70, False) == (50, 10)
    assert found(301, 305, True) == (70, 30)  # the large slot's turn has come and gone
