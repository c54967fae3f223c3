"""Planner benchmark: ratio to the lower bound and seconds on every instance, as a table with versions.

    python benchmarks/plan_time.py [--shared ../shared] [--scales 1k,10k,100k] [--seeds 7,11] [--repeats 3]

Instances are read from the shared folder; the generated ones are made by its gen_trace.py. Other planners run on
the same instances: omnimalloc where it is installed, and minimalloc, which omnimalloc carries too, where its
program is on the PATH and the instance has a capacity. What is missing is named below the versions.
"""

from __future__ import annotations

import argparse
import gzip
import json
import pickle
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib import metadata, util
from pathlib import Path

import numpy as np

from stalloc_accel import _core
from stalloc_accel.cli.plan import default_deadline_s, read_instance

_FAMILIES = ("vpp", "moe", "z3")
_CAPACITY = 1048576  # of minimalloc's challenging set


class _NoGlobals(pickle.Unpickler):
    def find_class(self, module: str, name: str):
        raise pickle.UnpicklingError(f"read a trace: global={module}.{name}, must not occur. Give a snapshot of torch.")


def last_step(trace: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What is born in the last step of a recorded trace, all streams together: lower, upper, size in 512-byte units."""
    with gzip.open(trace) as file:
        events = _NoGlobals(file).load()["device_traces"][0]
    marks = json.loads(trace.with_name(trace.name.replace(".pickle.gz", ".marks.json")).read_text())
    alive: dict[int, tuple[int, int]] = {}
    rows, tick = [], 0
    for event in events[marks[-2]:marks[-1]]:
        if event["action"] == "alloc":
            alive[event["addr"]] = (tick, event["size"])
            tick += 1
        elif event["action"] == "free_completed" and event["addr"] in alive:
            born, size = alive.pop(event["addr"])
            rows.append((born, tick, size))
    rows += [(born, tick, size) for born, size in alive.values()]
    lower, upper, size = np.array(rows, dtype=np.int64).T.copy()
    return lower, upper, (size + 511) // 512 * 512


def instances(args: argparse.Namespace, folder: Path) -> Iterator[tuple[str, tuple, int]]:
    for trace in sorted((args.shared / "traces").glob("*_nat.pickle.gz")):
        yield f"trace {trace.name.split('.')[0]}", last_step(trace), 0
    for path in sorted((args.shared / "instances").glob("*.csv")):
        yield path.stem, _columns(path), _CAPACITY if "1048576" in path.name else 0
    generator = args.shared / "instances" / "gen_trace.py"
    for scale in args.scales.split(","):
        for family in _FAMILIES:
            for seed in args.seeds.split(","):
                prefix = folder / f"{family}_{scale}_{seed}"
                subprocess.run([sys.executable, generator, family, scale, prefix, "--seed", seed], check=True,
                               stdout=subprocess.DEVNULL)
                prefix.with_suffix(".ev").unlink()
                yield prefix.name, _columns(prefix.with_suffix(".csv")), 0
                prefix.with_suffix(".csv").unlink()


def _columns(path: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    instance = read_instance(str(path))
    return instance.lower, instance.upper, instance.size


def measure(columns: tuple, capacity: int, args: argparse.Namespace) -> str:
    """Median of the repeats, each with a seed of its own."""
    lower, upper, size = columns
    ratios, seconds, method = [], [], ""
    for repeat in range(args.repeats):
        placement = _core.place(lower, upper, size, deadline_s=default_deadline_s(len(lower)), capacity=capacity,
                                num_threads=args.threads, seed=7 + repeat)
        if fault := _core.find_violation(lower, upper, placement["offsets"], size, placement["peak_bytes"]):
            raise SystemExit(f"check a placement: {fault}")
        ratios.append(placement["peak_bytes"] / placement["lower_bound_bytes"])
        seconds.append(placement["elapsed_s"])
        method = placement["method"]
    return f"{statistics.median(ratios):.5f} | {statistics.median(seconds):.3f} | {method}"


def measure_omnimalloc(columns: tuple, allocator: str) -> str:
    """One run of one of its allocators; the scale is bounded by the caller, since it has no deadline."""
    import omnimalloc

    lower, upper, size = columns
    allocations = [omnimalloc.Allocation(id=i, size=int(s), start=int(a), end=int(b))
                   for i, (a, b, s) in enumerate(zip(lower, upper, size, strict=True))]
    started = time.perf_counter()
    try:
        placed = omnimalloc.allocate(allocations, allocator)
    except Exception as error:  # a planner that gives up is a row of the table, not our failure
        return f"{type(error).__name__}: {error}"[:60].replace("|", "/")
    seconds = time.perf_counter() - started
    peak = max(a.offset + a.size for a in placed)
    bound = _core.place(lower, upper, size, deadline_s=0.0)["lower_bound_bytes"]
    return f"{peak / bound:.5f} in {seconds:.2f} s"


def measure_minimalloc_program(columns: tuple, capacity: int, folder: Path, limit_s: float = 60.0) -> str:
    """Seconds that the program takes to fit the instance into the capacity; it has no other mode."""
    if not capacity:
        return "-"
    lower, upper, size = columns
    source, target = folder / "minimalloc_in.csv", folder / "minimalloc_out.csv"
    rows = (f"{i},{a},{b},{s}\n" for i, (a, b, s) in enumerate(zip(lower, upper, size, strict=True)))
    source.write_text("id,lower,upper,size\n" + "".join(rows))
    target.unlink(missing_ok=True)
    started = time.perf_counter()
    try:
        subprocess.run(["minimalloc", f"--capacity={capacity}", f"--input={source}", f"--output={target}"],
                       timeout=limit_s, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    except subprocess.TimeoutExpired:
        return f"not in {limit_s:.0f} s"
    return f"fits in {time.perf_counter() - started:.2f} s" if target.exists() else "no placement"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shared", type=Path, default=Path(__file__).resolve().parents[2] / "shared")
    parser.add_argument("--scales", default="1k,10k,100k")
    parser.add_argument("--seeds", default="7")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--compare-up-to", type=int, default=2000, metavar="N", help="buffers of the largest instance given to others")
    args = parser.parse_args()
    if not (args.shared / "instances").is_dir():
        raise SystemExit(f"skipped: no folder {args.shared / 'instances'}. Give it with --shared.")
    has_omnimalloc = util.find_spec("omnimalloc") is not None
    others = ["omni", "minimalloc"] if has_omnimalloc else []
    packages = ["stalloc-accel", "numpy", *(["omnimalloc"] if has_omnimalloc else [])]
    has_program = shutil.which("minimalloc") is not None
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in packages)
    print(f"{versions}, Python {platform.python_version()}, {platform.machine()}, {args.threads} threads, "
          f"median of {args.repeats}")
    for name, is_there, place in (("omnimalloc", has_omnimalloc, "installed"), ("minimalloc", has_program, "on the PATH")):
        if not is_there:
            print(f"skipped: {name} is not {place}.")
    print()
    print("| instance | buffers | ratio | seconds | method |" + "".join(f" {name} |" for name in others)
          + (" minimalloc program |" if has_program else ""))
    print("|---|---|---|---|---|" + "---|" * (len(others) + has_program))
    with tempfile.TemporaryDirectory() as folder:
        for name, columns, capacity in instances(args, Path(folder)):
            row = f"| {name} | {len(columns[0])} | {measure(columns, capacity, args)} |"
            for other in others:
                row += f" {measure_omnimalloc(columns, other) if len(columns[0]) <= args.compare_up_to else '-'} |"
            if has_program:
                row += f" {measure_minimalloc_program(columns, capacity, Path(folder))} |"
            print(row, flush=True)


if __name__ == "__main__":
    main()
