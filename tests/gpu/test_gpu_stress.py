"""The stress program, for a short while: every block keeps its bytes, and all memory comes back."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import stress


def test_every_block_keeps_its_bytes_whatever_happens_around_it(arena, request, seed):
    seconds = request.config.getoption("--stress-seconds", default=30.0)
    found = stress.run(arena, seconds, seed)
    print(found)
    assert found["corruptions"] == 0 and found["leaked bytes"] == 0 and found["bad_frees"] == 0
    assert found["slot_hits"] > 100 and found["gap_hits"] > 100, "it stressed torch's allocator and not ours"
    assert min(found[name] for name in ("captures", "replays", "reads on other streams", "blocks handed over", "steps")) > 10


def test_without_record_stream_the_same_program_finds_corruption(arena, seed):
    for number in range(5):  # how many streams and threads there are is the seed's choice
        found = stress.run_program(arena, f"{seed}:{number}", 6.0, records_streams=False)
        if found["corruptions"] > 0:
            return
    raise AssertionError(f"reading what nothing keeps was never noticed: {found}")


def test_the_debug_mode_finds_nothing_in_the_same_programs(cuda_module, seed):
    command = [sys.executable, str(Path(stress.__file__)), "--debug", "--seconds", "10", "--seed", str(seed)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
