"""The planner: every placement is checked, small instances of each kind have known values."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stalloc_accel import _core

_DATA = Path(__file__).parent / "data"
# The best peak over the lower bound; 1 is proved optimal by the bound.
_KNOWN = {"plan_vpp": 1.0, "plan_moe": 1.0, "plan_z3": 1.0, "plan_resnet50": 1.0}
_CAPACITY = 1048576  # into which plan_minimalloc_c is known to fit

_BUFFER = st.tuples(st.integers(0, 20), st.integers(1, 15), st.integers(1, 50))
_OBSTACLE = st.tuples(st.integers(0, 20), st.integers(1, 15), st.integers(0, 80), st.integers(1, 30))


def _load(name: str):
    table = np.loadtxt(_DATA / f"{name}.csv", delimiter=",", skiprows=1, dtype=np.int64)
    return tuple(np.ascontiguousarray(table[:, k]) for k in (1, 2, 3))


def _buffers(rows):
    lower, life, size = np.array(rows, dtype=np.int64).reshape(-1, 3).T.copy()
    return lower, lower + life, size


def _peak_liveness(lower, upper, size) -> int:
    return max((int(size[(lower <= t) & (t < upper)].sum()) for t in lower), default=0)


def _check(lower, upper, size, placement) -> None:
    assert _core.find_violation(lower, upper, placement["offsets"], size, max(placement["peak_bytes"], 1)) == ""
    assert placement["peak_bytes"] >= placement["lower_bound_bytes"]
    assert placement["proved_bound_bytes"] >= placement["lower_bound_bytes"]
    assert placement["optimal"] == (placement["peak_bytes"] == placement["proved_bound_bytes"])


def _least_peak(lower, upper, size) -> int:
    """By brute force: in some order, each buffer at the lowest place that is free, makes a best placement."""
    least = int(size.sum())
    for order in permutations(range(len(size))):
        offset = np.zeros(len(size), dtype=np.int64)
        for k, i in enumerate(order):
            taken = sorted((int(offset[j]), int(offset[j] + size[j])) for j in order[:k]
                           if lower[i] < upper[j] and lower[j] < upper[i])
            for begin, end in taken:
                if begin - offset[i] >= size[i]:
                    break
                offset[i] = max(int(offset[i]), end)
        least = min(least, int((offset + size).max()))
    return least


@given(st.lists(_BUFFER, max_size=25), st.integers(1, 2))
@settings(deadline=None)
def test_every_placement_is_valid_and_its_bound_is_the_peak_liveness(rows, num_threads):
    lower, upper, size = _buffers(rows)
    placement = _core.place(lower, upper, size, deadline_s=0.01, num_threads=num_threads)
    _check(lower, upper, size, placement)
    assert placement["lower_bound_bytes"] == _peak_liveness(lower, upper, size)


@given(st.lists(_BUFFER, max_size=20), st.lists(_OBSTACLE, max_size=6), st.sampled_from([1, 8]))
@settings(deadline=None)
def test_no_buffer_shares_bytes_with_an_obstacle_even_where_obstacles_share_bytes(rows, obstacle_rows, alignment):
    lower, upper, size = _buffers(rows)
    obstacles = np.array(obstacle_rows, dtype=np.int64).reshape(-1, 4)
    obstacles[:, 1] += obstacles[:, 0]
    placement = _core.place(lower, upper, size, alignment=alignment, deadline_s=0.01, obstacles=obstacles)
    _check(lower, upper, size, placement)
    for born, dead, begin, length in obstacles:
        together = (lower < dead) & (born < upper)
        apart = (placement["offsets"] >= begin + length) | (placement["offsets"] + size <= begin)
        assert (~together | apart).all()


@given(st.lists(_BUFFER, min_size=1, max_size=20), st.sampled_from([2, 7, 512]))
@settings(deadline=None)
def test_offsets_are_multiples_of_the_alignment_and_rounded_sizes_do_not_touch(rows, alignment):
    lower, upper, size = _buffers(rows)
    placement = _core.place(lower, upper, size, alignment=alignment, deadline_s=0.01)
    assert (placement["offsets"] % alignment == 0).all()
    _check(lower, upper, (size + alignment - 1) // alignment * alignment, placement)


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(1, 4), st.integers(1, 6)), min_size=1, max_size=6))
@settings(deadline=None, max_examples=60)
def test_the_smallest_problems_are_solved_and_proved_optimal(rows):
    lower, upper, size = _buffers(rows)
    placement = _core.place(lower, upper, size, deadline_s=60.0)
    _check(lower, upper, size, placement)
    assert placement["optimal"] and placement["peak_bytes"] == _least_peak(lower, upper, size)


# At most 9 bytes live at once, but no placement is below 10: trying all offsets shows it.
_ABOVE_ITS_BOUND = [(0, 2, 4), (3, 2, 1), (1, 3, 2), (2, 2, 3), (0, 1, 4), (1, 1, 1), (1, 2, 2), (2, 1, 2), (0, 1, 1),
                    (3, 1, 3), (4, 1, 8)]


def test_a_peak_above_the_bound_is_proved_optimal():
    lower, upper, size = _buffers(_ABOVE_ITS_BOUND)
    placement = _core.place(lower, upper, size, deadline_s=60.0)
    _check(lower, upper, size, placement)
    assert placement["optimal"] and placement["method"] == "exact"
    assert placement["lower_bound_bytes"] == 9 and placement["peak_bytes"] == placement["proved_bound_bytes"] == 10


def test_the_search_ends_when_the_capacity_is_proved_to_be_too_small():
    lower, upper, size = _buffers(_ABOVE_ITS_BOUND)
    for capacity in (9, 8):
        placement = _core.place(lower, upper, size, deadline_s=60.0, capacity=capacity)
        _check(lower, upper, size, placement)
        assert placement["proved_bound_bytes"] > capacity and placement["elapsed_s"] < 30


@pytest.mark.parametrize("num_threads", [1, 2])
def test_a_hard_instance_fits_its_capacity_in_the_same_way_each_time(num_threads):
    lower, upper, size = _load("plan_minimalloc_c")
    first, second = (_core.place(lower, upper, size, deadline_s=60.0, capacity=_CAPACITY, num_threads=num_threads, seed=11)
                     for _ in range(2))
    _check(lower, upper, size, first)
    assert first["peak_bytes"] <= _CAPACITY and (first["offsets"] == second["offsets"]).all()


def test_the_exact_search_ends_at_the_deadline():
    lower, upper, size = (np.tile(column, 4) for column in _load("plan_minimalloc_c"))
    size = size * 997 + np.arange(len(size)) % 13  # sizes that hardly ever add up: neither found nor refuted soon
    placement = _core.place(lower, upper, size, deadline_s=0.5, num_threads=2)
    _check(lower, upper, size, placement)
    assert not placement["optimal"] and 0.5 <= placement["elapsed_s"] < 5


@pytest.mark.parametrize("name", sorted(_KNOWN))
def test_small_instances_reach_their_known_values(name):
    lower, upper, size = _load(name)
    placement = _core.place(lower, upper, size, deadline_s=5.0)
    _check(lower, upper, size, placement)
    assert placement["peak_bytes"] <= _KNOWN[name] * placement["lower_bound_bytes"]


def test_a_hard_instance_is_placed_even_when_there_is_no_time():
    lower, upper, size = _load("plan_minimalloc_c")
    placement = _core.place(lower, upper, size, deadline_s=0.0)
    _check(lower, upper, size, placement)


def test_the_search_ends_at_the_capacity():
    lower, upper, size = _load("plan_minimalloc_c")
    bound = _core.place(lower, upper, size, deadline_s=0.0)["lower_bound_bytes"]
    placement = _core.place(lower, upper, size, deadline_s=30.0, capacity=2 * bound)
    _check(lower, upper, size, placement)
    assert placement["peak_bytes"] <= 2 * bound
    assert placement["elapsed_s"] < 5


def test_the_same_seed_gives_the_same_placement():
    lower, upper, size = _load("plan_vpp")
    first, second = (_core.place(lower, upper, size, deadline_s=30.0, seed=3, num_threads=2) for _ in range(2))
    assert first["optimal"] and (first["offsets"] == second["offsets"]).all()


def test_no_buffers_need_no_bytes():
    empty = np.zeros(0, dtype=np.int64)
    placement = _core.place(empty, empty, empty)
    assert placement["peak_bytes"] == 0 and placement["optimal"]


@pytest.mark.parametrize(("lower", "upper", "size", "text"), [
    (3, 3, 1, "must be less than upper"), (5, 3, 1, "must be less than upper"), (0, 1, 0, "buffers\\[0\\].size=0"),
    (0, 1, -4, "buffers\\[0\\].size=-4"), (0, 1, 2**62, "must lie in")])
def test_what_is_not_a_buffer_is_refused_by_name(lower, upper, size, text):
    arrays = [np.array([value], dtype=np.int64) for value in (lower, upper, size)]
    with pytest.raises(ValueError, match=text):
        _core.place(*arrays)


def test_sums_that_overflow_are_refused():
    lower, upper, size = _buffers([(0, 1, 2**60)] * 8)
    with pytest.raises(ValueError, match="total size"):
        _core.place(lower, upper, size)


def test_columns_of_different_lengths_are_refused():
    with pytest.raises(ValueError, match=r"len\(upper\)=1"):
        _core.place(np.zeros(2, dtype=np.int64), np.ones(1, dtype=np.int64), np.ones(2, dtype=np.int64))
