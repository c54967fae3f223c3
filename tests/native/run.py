"""Runs the programs of tests/native for a time, one process a core with seeds of its own. Needs make, g++ and this Python.

    python3 tests/native/run.py snapshot plan engine --seconds 3600     # fuzzing
    python3 tests/native/run.py host threads simulated --seconds 3600   # random programs
    python3 tests/native/run.py --seconds 600 --jobs 16                 # all six

Builds what is asked for, then prints one JSON line: {"seed", "jobs", "tasks": {name: {"processes", "crashes", and sums of
what its processes counted}}, "findings": [how to repeat each crash]}. A crash does not end a task: it goes on with another
seed. Exit 1 where there was one.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
BUILD = FOLDER.parents[1] / "build" / "native" / "address"
FUZZ_TARGETS = ("snapshot", "plan", "engine")
STRESS_KINDS = ("host", "threads", "simulated")
_SPARE_S = 120  # after its time a process may finish the program or input that it is in


def command(task: str) -> list[str]:
    if task in FUZZ_TARGETS:
        return [str(BUILD / "fuzz"), task, str(FOLDER / "fuzz" / "corpus" / task)]
    return [str(BUILD / "stress"), "--kind", task]


def work(task: str, seed: int, seconds: float, programs: int) -> tuple[str, collections.Counter, list[str]]:
    """One process after another until the time is over; as long as none crashes it is one."""
    counts: collections.Counter = collections.Counter(processes=1, crashes=0)
    findings: list[str] = []
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0.5 or not counts["seconds"]:
        finding = BUILD / "findings" / f"{task}-{seed}"
        finding.parent.mkdir(exist_ok=True)
        arguments = [*command(task), "--seconds", f"{max(left, 1):.0f}",
                     "--programs", str(programs), "--seed", str(seed)]
        try:
            done = subprocess.run(arguments, capture_output=True, text=True, errors="replace", timeout=seconds + _SPARE_S,
                                  env={**os.environ, "FUZZ_FINDING": str(finding)})
            code, error = done.returncode, done.stderr
            counts.update(counted(done.stdout))
        except subprocess.TimeoutExpired:
            code, error = -1, f"hangs: {' '.join(arguments)}\n"
        if code == 0:
            break
        counts.update(crashes=1, seconds=max(1, left - (end - time.monotonic())))
        finding.with_suffix(".log").write_text(error)
        findings.append(f"{finding}.log: {(error.splitlines() or ['no word'])[-1]}")
        if counts["crashes"] >= 20:
            break
        seed = random.Random(seed).randrange(2**48)
    return task, counts, findings


def counted(output: str) -> dict[str, float]:
    """The name=number pairs of the last line that has some."""
    for line in reversed(output.splitlines()):
        pairs = [pair.split("=") for pair in line.split() if "=" in pair]
        if pairs:
            return {name: float(value) if "." in value else int(value) for name, value in pairs}
    return {}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", metavar="TASK", help=f"of {', '.join(FUZZ_TARGETS + STRESS_KINDS)}; all")
    parser.add_argument("--seconds", type=float, default=10, help="of each process")
    parser.add_argument("--programs", type=int, default=1, help="that each process runs at least, whatever the time")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(2**31))
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="processes at once")
    options = parser.parse_args()
    tasks = options.tasks or list(FUZZ_TARGETS + STRESS_KINDS)
    for task in tasks:
        if task not in FUZZ_TARGETS + STRESS_KINDS:
            parser.error(f"Unknown task: task={task!r}, must be one of {', '.join(FUZZ_TARGETS + STRESS_KINDS)}.")
    programs = sorted({command(task)[0] for task in tasks})
    subprocess.run(["make", "-s", "-C", str(FOLDER), f"-j{options.jobs}", *programs], check=True, stdout=sys.stderr)
    draw = random.Random(options.seed)
    totals: dict[str, collections.Counter] = {task: collections.Counter() for task in tasks}
    findings: list[str] = []
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        jobs = [pool.submit(work, tasks[index % len(tasks)], draw.randrange(2**48), options.seconds,
                            options.programs)
                for index in range(max(options.jobs, len(tasks)))]
        for job in jobs:
            task, counts, found = job.result()
            totals[task].update(counts)
            findings += found
    print(json.dumps({"seed": options.seed, "jobs": options.jobs, "tasks": totals, "findings": findings}))
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
