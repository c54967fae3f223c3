"""Finds where the steps of a training run begin, from its allocations alone."""

from __future__ import annotations

import numpy as np

from stalloc_accel.snapshot import ALLOC, FREE_REQUESTED, History

_GRAM = 4  # sizes in a row that are taken for one mark
_SPREAD = 0.15  # of the distances between a mark's occurrences
_MIN_COVERAGE = 0.5  # of the history, by the occurrences of a mark
_MIN_STEP = 16  # allocations


def find_steps(history: History) -> np.ndarray:
    """Event indices where steps begin, the last the end of the last step; empty where nothing repeats.

    A row of sizes that occurs once a step has occurrences at even distances; what occurs in each layer does not, for
    the rest of the step lies between. So the distance that most such rows agree on is the step. Of the rows that show
    it, the one at which least is live makes the cut.
    """
    allocations = np.flatnonzero(history.action == ALLOC)
    if len(allocations) < 3 * _MIN_STEP:
        return np.zeros(0, np.int64)
    marks = _even_marks(history.size[allocations])
    if not marks:
        return np.zeros(0, np.int64)
    step = _agreed_distance(marks)
    live = _live_bytes(history)
    chosen = min((at for distance, at in marks if abs(distance - step) <= _SPREAD * step),
                 key=lambda at: int(np.median(live[allocations[at]])))
    begins = allocations[chosen].astype(np.int64)
    tail = len(allocations) - chosen[-1]
    return np.append(begins, len(history)) if tail >= (1 - _SPREAD) * step else begins


def _even_marks(sizes: np.ndarray) -> list[tuple[float, np.ndarray]]:
    """(distance, positions) of each row of sizes that comes back at even distances, counted in allocations."""
    grams = _hashes(sizes)
    order = np.argsort(grams, kind="stable")
    first = np.flatnonzero(np.append(True, grams[order][1:] != grams[order][:-1]))
    marks = []
    for begin, end in zip(first, np.append(first[1:], len(order))):
        if end - begin < 3:
            continue
        at = order[begin:end]
        if (at[-1] - at[0]) < _MIN_COVERAGE * len(sizes) / 2:
            continue
        distances = np.diff(at)
        # The first steps may differ from the rest: they do not count.
        settled = distances[len(distances) // 3:]
        median = float(np.median(settled))
        if median >= _MIN_STEP and settled.max() - settled.min() <= _SPREAD * median:
            if median * len(at) >= _MIN_COVERAGE * len(sizes):
                marks.append((median, at))
    return marks


def _hashes(sizes: np.ndarray) -> np.ndarray:
    mixed = sizes.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mixed ^= mixed >> np.uint64(29)
    count = len(sizes) - _GRAM + 1
    grams = np.zeros(count, np.uint64)
    for offset in range(_GRAM):
        grams = grams * np.uint64(0xBF58476D1CE4E5B9) + mixed[offset:offset + count]
    return grams


def _agreed_distance(marks: list[tuple[float, np.ndarray]]) -> float:
    """Rows that come back by chance do so rarely: what comes often counts for much more."""
    marks = sorted(marks, key=lambda mark: mark[0])
    distances = np.array([distance for distance, _ in marks])
    weights = np.concatenate([[0], np.cumsum([(len(at) - 2) ** 2 for _, at in marks])])
    last = np.searchsorted(distances, distances * (1 + _SPREAD / 2), "right")
    first = int(np.argmax(weights[last] - weights[:-1]))
    return float(np.median(distances[first:last[first]]))


def _live_bytes(history: History) -> np.ndarray:
    """After each event, as requested."""
    change = np.where(history.action == ALLOC, history.size, 0) - np.where(history.action == FREE_REQUESTED, history.size, 0)
    return np.cumsum(change)
