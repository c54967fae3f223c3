"""The hot path asks for no host memory: counted by a program that has every malloc of the process pass through it.

It links the engine without Python, torch or CUDA, so there is no GIL on that path and nothing to log with.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[1] / "benchmarks"))

import engine_pair  # noqa: E402


@pytest.fixture(scope="module")
def found():
    figures = engine_pair.run(20_000)
    print(figures)
    return figures


@pytest.mark.parametrize("scenario", ["slots", "recorded"])
def test_serving_slots_asks_for_no_host_memory(found, scenario):
    figures = found[scenario]
    assert figures["slot_hits"] == figures["requests"] > 19_000, "else it is not the slots' path that was counted"
    assert figures["mallocs"] == 0
    assert 0 < figures["pair_ns"] < 2_000, "far above what it takes: 100 ns on an idle machine"


@pytest.mark.parametrize(("scenario", "least_live"), [("gaps_small", 60), ("gaps_large", 4_000), ("gaps_recorded", 4_000)])
def test_serving_gaps_asks_for_no_host_memory(found, scenario, least_live):
    figures = found[scenario]
    assert figures["gap_hits"] > 0.45 * figures["requests"] > 4_000
    assert figures["slot_hits"] + figures["gap_hits"] > 0.99 * figures["requests"]
    assert figures["most_live"] >= least_live
    assert figures["mallocs"] == 0
    assert 0 < figures["pair_ns"] < 10_000, "far above what it takes: under 1 us on an idle machine"


def test_threads_that_ask_at_once_are_all_served_from_slots(found):
    for num_threads in (1, 2, 4, 8, 16):
        assert found[f"threads_{num_threads}"]["slot_hits"] > 10_000
