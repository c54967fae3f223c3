"""The validator against a brute force that looks at every pair."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stalloc_accel import _core

_PLACED = st.tuples(st.integers(0, 12), st.integers(1, 6), st.integers(0, 12), st.integers(1, 6))


def _columns(rows):
    lower, life, offset, size = np.array(rows, dtype=np.int64).reshape(-1, 4).T.copy()
    return lower, lower + life, offset, size


def _is_wrong(lower, upper, offset, size, limit):
    n = len(lower)
    pairs = [(i, j) for i in range(n) for j in range(i)
             if lower[i] < upper[j] and lower[j] < upper[i]
             and offset[i] < offset[j] + size[j] and offset[j] < offset[i] + size[i]]
    return bool(pairs) or any(offset[i] < 0 or offset[i] + size[i] > limit for i in range(n))


@given(st.lists(_PLACED, max_size=8), st.integers(1, 18))
def test_it_agrees_with_a_brute_force(rows, limit):
    lower, upper, offset, size = _columns(rows)
    text = _core.find_violation(lower, upper, offset, size, limit)
    assert bool(text) == _is_wrong(lower, upper, offset, size, limit)


def test_a_buffer_may_take_the_bytes_of_one_that_died_at_its_birth():
    lower, upper, offset, size = _columns([(0, 5, 0, 8), (5, 5, 0, 8)])
    assert _core.find_violation(lower, upper, offset, size, 8) == ""


def test_the_sentence_names_both_buffers():
    lower, upper, offset, size = _columns([(0, 5, 0, 8), (4, 5, 7, 8)])
    text = _core.find_violation(lower, upper, offset, size, 100)
    assert "buffer 1 (lower=4, upper=9, offset=7, size=8) shares bytes with buffer 0" in text


def test_numbers_near_the_largest_do_not_overflow():
    top = np.iinfo(np.int64).max
    arrays = [np.array([value], dtype=np.int64) for value in (0, 1, top - 1, top)]
    assert "ends above" in _core.find_violation(*arrays, int(top))


def test_a_buffer_that_never_lives_or_has_no_bytes_is_named():
    one = np.array([1], dtype=np.int64)
    zero = np.array([0], dtype=np.int64)
    assert "never lives" in _core.find_violation(one, one, zero, one, 10)
    assert "has no bytes" in _core.find_violation(zero, one, zero, zero, 10)
