"""A few seconds of each program of tests/native; `make -C tests/native` runs them for longer.

The first build compiles the library with sanitizers, two minutes of it.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent / "native"


@pytest.fixture(scope="module")
def built() -> None:
    compiler = os.environ.get("CXX", "g++")
    if shutil.which("make") is None or shutil.which(compiler) is None:
        pytest.skip("needs make and g++")
    probe = subprocess.run([compiler, "-fsanitize=address,undefined", "-x", "c++", "-", "-o", os.devnull],
                           input="int main() {}", capture_output=True, text=True)
    if probe.returncode != 0:
        pytest.skip("the compiler comes without sanitizers")
    done = subprocess.run(["make", "-s", "-C", str(FOLDER), f"-j{os.cpu_count()}", "programs"], capture_output=True,
                          text=True, timeout=1800)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.slow
@pytest.mark.parametrize("task", ["snapshot", "plan", "engine", "host", "threads", "simulated"])
def test_neither_inputs_that_reach_new_code_nor_random_programs_find_anything(built, task, seed):
    done = subprocess.run([sys.executable, str(FOLDER / "run.py"), task, "--seconds", "3", "--programs", "6", "--jobs", "1",
                           "--seed", str(seed)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    counts = json.loads(done.stdout)["tasks"][task]
    assert counts["programs"] >= 6 and counts["events"] > 20 and counts["crashes"] == 0


@pytest.mark.slow
def test_whichever_extent_fence_or_heap_allocation_fails_nothing_is_lost(built, seed):
    program = FOLDER.parents[1] / "build" / "native" / "address" / "faults"
    done = subprocess.run([str(program), str(seed)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    counts = dict(pair.split("=") for pair in done.stdout.split()[1:])
    assert int(counts["memory"]) > 20 and int(counts["heap"]) > 4
