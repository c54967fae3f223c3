"""The address range behind an arena: taking, best fit, giving back."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stalloc_accel._core import BlockMap

GRANULE = 512


def test_a_range_is_taken_only_while_every_byte_of_it_is_free():
    blocks = BlockMap(16 * GRANULE, 64)
    assert blocks.take_at(4 * GRANULE, 4 * GRANULE)
    assert not blocks.take_at(7 * GRANULE, GRANULE)
    assert not blocks.take_at(0, 5 * GRANULE)
    assert blocks.take_at(0, 4 * GRANULE)
    blocks.release(4 * GRANULE)
    assert blocks.take_at(4 * GRANULE, 12 * GRANULE)


@pytest.mark.parametrize(("offset", "size"), [(-GRANULE, GRANULE), (16 * GRANULE, GRANULE), (0, 17 * GRANULE), (0, 0)])
def test_ranges_outside_are_refused(offset, size):
    assert not BlockMap(16 * GRANULE, 64).take_at(offset, size)


def test_best_fit_takes_the_smallest_hole_that_holds_the_request():
    blocks = BlockMap(64 * GRANULE, 64)
    for offset in (0, 10, 14, 40):  # holes of 9, 3, 25 and 23 granules
        assert blocks.take_at(offset * GRANULE, GRANULE)
    assert blocks.take_best_fit(3 * GRANULE) == 11 * GRANULE
    assert blocks.take_best_fit(20 * GRANULE) == 41 * GRANULE
    assert blocks.take_best_fit(30 * GRANULE) == -1


def test_a_full_table_refuses_and_loses_nothing():
    blocks = BlockMap(1024 * GRANULE, 8)
    taken = [i for i in range(0, 1024, 2) if blocks.take_at(i * GRANULE, GRANULE)]
    assert 0 < len(taken) < 8
    blocks.check_invariants()
    for i in taken:
        blocks.release(i * GRANULE)
    blocks.check_invariants()
    assert blocks.largest_free_bytes() == 1024 * GRANULE


@pytest.mark.parametrize("size", [0, -512, 100, 1 << 41])
def test_sizes_that_cannot_be_an_arena_are_refused(size):
    with pytest.raises(ValueError, match="size_bytes="):
        BlockMap(size, 16)


@given(st.integers(0, 2**32), st.integers(8, 5000))
def test_random_programs_agree_with_a_set_of_granules(seed, num_granules):
    draw = random.Random(seed)
    blocks = BlockMap(num_granules * GRANULE, 512)
    free, live = set(range(num_granules)), {}
    for _ in range(150):
        length = min(draw.choice((1, 1, 2, 3, 7, 40, 300)), num_granules)
        if live and draw.random() < 0.45:
            start = draw.choice(list(live))
            blocks.release(start * GRANULE)
            free.update(range(start, start + live.pop(start)))
        elif draw.random() < 0.5:
            start = draw.randrange(num_granules - length + 1)
            wanted = set(range(start, start + length))
            assert blocks.take_at(start * GRANULE, length * GRANULE) == (wanted <= free)
            if wanted <= free:
                free -= wanted
                live[start] = length
        else:
            offset = blocks.take_best_fit(length * GRANULE)
            if offset >= 0:
                start = offset // GRANULE
                wanted = set(range(start, start + length))
                assert wanted <= free
                free -= wanted
                live[start] = length
    blocks.check_invariants()
    assert blocks.used_bytes() == sum(live.values()) * GRANULE
