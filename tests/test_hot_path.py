"""The hot path asks for no host memory: counted by a program that has every malloc of the process pass through it.

It links the engine without Python, torch or CUDA, so there is no GIL on that path and nothing to log with.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "benchmarks"))

import engine_pair  # noqa: E402


def test_serving_and_recording_ask_for_no_host_memory():
    found = engine_pair.run(20_000)
    print(found)
    assert found["slot_hits"] == found["requests"] > 19_000, "else it is not the slots' path that was counted"
    assert found["gap_hits"] > 0.9 * found["gap_requests"] > 15_000
    assert found["mallocs"] == found["recorded_mallocs"] == found["gap_mallocs"] == 0
    assert 0 < found["pair_ns"] < 2_000, "far above what it takes: 150 ns on an idle machine"
