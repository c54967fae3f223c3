"""The planner: every placement is checked, small instances of each kind have known values."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stalloc_accel import _core

_DATA = Path(__file__).parent / "data"
# The best peak over the lower bound; 1 is proved optimal by the bound.
_KNOWN = {"plan_vpp": 1.0, "plan_moe": 1.0, "plan_z3": 1.0, "plan_resnet50": 1.0}

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
    assert placement["optimal"] == (placement["peak_bytes"] == placement["lower_bound_bytes"])


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
