"""Planner benchmark: ratio to the lower bound and seconds on every instance against what is asked, with versions.

    python benchmarks/plan_time.py [--shared ../shared] [--scales 1k,10k,100k,1m] [--seeds 7] [--repeats 3]
                                   [--omnimalloc PYTHON]

Instances are read from the shared folder; the generated ones are made by its gen_trace.py. Each repeat has a seed of
its own; the deadlines are those of `stalloc plan`. Other planners run once on the same instances: omnimalloc where this
interpreter or the one named has it, and minimalloc where its program is on the PATH and the instance has a capacity.
What is missing is named below the versions. The whole table takes about ten minutes on two idle cores.
"""

from __future__ import annotations

import argparse
import gzip
import json
import pickle
import platform
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import numpy as np

from stalloc_accel import _core
from stalloc_accel.cli.plan import default_deadline_s, read_instance

_FAMILIES = ("vpp", "moe", "z3")
_CAPACITY = 1048576  # of minimalloc's challenging set
_CAPACITY_TOTAL_S = 6.0  # asked for all of it together
_OMNIMALLOC = Path(__file__).with_name("plan_time_omnimalloc.py")
_OTHERS_LIMIT_S = 30.0

# The ratio and the seconds asked for.
_ASKED_TRACE = (1.001, 0.15)
_ASKED_SCALES = {"1k": (1.0, 1.0), "10k": (1.002, 2.0), "100k": (1.002, 8.0), "1m": (1.002, 45.0)}
_ASKED_NAMED = {"pangu_2.6B": (1.004, 10.0), "G_1": (1.0003, 5.0), "resnet50": (1.0003, 5.0)}


@dataclass(frozen=True)
class Instance:
    name: str
    lower: np.ndarray
    upper: np.ndarray
    size: np.ndarray
    asked: tuple[float, float] | None = None
    capacity: int = 0

    @property
    def num_buffers(self) -> int:
        return len(self.lower)


@dataclass(frozen=True)
class Figures:
    ratios: list[float]  # to the lower bound
    peaks: list[int]
    seconds: list[float]
    method: str
    lower_bound_bytes: int

    @property
    def ratio(self) -> float:
        return statistics.median(self.ratios)

    @property
    def second(self) -> float:
        return statistics.median(self.seconds)


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


def instances(args: argparse.Namespace, folder: Path) -> Iterator[Instance]:
    for trace in sorted((args.shared / "traces").glob("*.pickle.gz")):
        yield Instance(f"trace {trace.name.split('.')[0]}", *last_step(trace), _ASKED_TRACE)
    for path in sorted((args.shared / "instances").glob("*.csv")):
        capacity = _CAPACITY if str(_CAPACITY) in path.name else 0
        yield Instance(path.stem, *_columns(path), _ASKED_NAMED.get(path.stem), capacity)
    generator = args.shared / "instances" / "gen_trace.py"
    for scale in args.scales.split(","):
        for family in _FAMILIES:
            for seed in args.seeds.split(","):
                prefix = folder / f"{family}_{scale}_{seed}"
                subprocess.run([sys.executable, generator, family, scale, prefix, "--seed", seed], check=True,
                               stdout=subprocess.DEVNULL)
                prefix.with_suffix(".ev").unlink()
                yield Instance(prefix.name, *_columns(prefix.with_suffix(".csv")), _ASKED_SCALES.get(scale))
                prefix.with_suffix(".csv").unlink()


def _columns(path: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    instance = read_instance(str(path))
    return instance.lower, instance.upper, instance.size


def measure(instance: Instance, args: argparse.Namespace) -> Figures:
    """Each repeat with a seed of its own."""
    columns = (instance.lower, instance.upper, instance.size)
    ratios, peaks, seconds, method = [], [], [], ""
    for repeat in range(args.repeats):
        placement = _core.place(*columns, deadline_s=default_deadline_s(instance.num_buffers),
                                capacity=instance.capacity, num_threads=args.threads, seed=7 + repeat)
        if fault := _core.find_violation(instance.lower, instance.upper, placement["offsets"], instance.size,
                                         placement["peak_bytes"]):
            raise SystemExit(f"check a placement: {fault}")
        peaks.append(placement["peak_bytes"])
        ratios.append(placement["peak_bytes"] / placement["lower_bound_bytes"])
        seconds.append(placement["elapsed_s"])
        method = placement["method"]
    return Figures(ratios, peaks, seconds, method, placement["lower_bound_bytes"])


def describe(instance: Instance, figures: Figures) -> str:
    cells = [instance.name, str(instance.num_buffers), f"{figures.ratio:.5f}", f"{max(figures.ratios):.5f}",
             f"{figures.second:.3f}", figures.method]
    if instance.capacity:
        cells += ["fits", "yes" if max(figures.peaks) <= instance.capacity else "no"]
    elif instance.asked:
        ratio, seconds = instance.asked
        is_met = figures.ratio <= ratio + 1e-9 and figures.second <= seconds
        cells += [f"{ratio:g} in {seconds:g} s", "yes" if is_met else "no"]
    else:
        cells += ["-", "-"]
    return "| " + " | ".join(cells) + " |"


def write_csv(instance: Instance, path: Path) -> None:
    rows = enumerate(zip(instance.lower, instance.upper, instance.size, strict=True))
    path.write_text("id,lower,upper,size\n" + "".join(f"{i},{a},{b},{s}\n" for i, (a, b, s) in rows))


def measure_omnimalloc(instance: Instance, bound_bytes: int, allocator: str, python: str, source: Path) -> str:
    """One run of one of its allocators, which may take the seconds that are asked of us, or a few."""
    budget = instance.asked[1] if instance.asked else _CAPACITY_TOTAL_S
    try:
        run = subprocess.run([python, str(_OMNIMALLOC), str(source), allocator, str(budget)], text=True,
                             timeout=_OTHERS_LIMIT_S, capture_output=True, check=False)
    except subprocess.TimeoutExpired:
        return f"not in {_OTHERS_LIMIT_S:.0f} s"
    if run.returncode != 0:
        return f"status {run.returncode}"
    answer = json.loads(run.stdout.splitlines()[-1])
    if "error" in answer:
        return answer["error"]
    return f"{answer['peak_bytes'] / bound_bytes:.5f} in {answer['seconds']:.2f} s"


def measure_minimalloc_program(instance: Instance, source: Path) -> str:
    """Seconds that the program takes to fit the instance into the capacity; it has no other mode."""
    if not instance.capacity:
        return "-"
    target = source.with_name("minimalloc_out.csv")
    target.unlink(missing_ok=True)
    started = time.perf_counter()
    try:
        subprocess.run(["minimalloc", f"--capacity={instance.capacity}", f"--input={source}", f"--output={target}"],
                       timeout=_OTHERS_LIMIT_S, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    except subprocess.TimeoutExpired:
        return f"not in {_OTHERS_LIMIT_S:.0f} s"
    return f"fits in {time.perf_counter() - started:.2f} s" if target.exists() else "no placement"


def find_omnimalloc(python: str) -> tuple[str, list[str]]:
    """Its version and the allocators it can run in that interpreter; nothing where it is not installed."""
    run = subprocess.run([python, str(_OMNIMALLOC), "--version"], text=True, capture_output=True, check=False)
    if run.returncode != 0:
        return "", []
    version, *allocators = run.stdout.split()
    return version, allocators


def print_versions(args: argparse.Namespace, omnimalloc: str, has_program: bool) -> None:
    versions = [f"{name} {metadata.version(name)}" for name in ("stalloc-accel", "numpy")]
    versions += [f"omnimalloc {omnimalloc}"] if omnimalloc else []
    print(f"{', '.join(versions)}, Python {platform.python_version()}, {platform.machine()}, {args.threads} threads, "
          f"median of {args.repeats}")
    if not omnimalloc:
        print("skipped: omnimalloc is not installed. Name an interpreter that has it with --omnimalloc.")
    if not has_program:
        print("skipped: minimalloc is not on the PATH.")
    print()


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shared", type=Path, default=Path(__file__).resolve().parents[2] / "shared")
    parser.add_argument("--scales", default="1k,10k,100k,1m")
    parser.add_argument("--seeds", default="7")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--omnimalloc", default=sys.executable, metavar="PYTHON", help="an interpreter that has omnimalloc")
    parser.add_argument("--compare-up-to", type=int, default=150_000, metavar="N",
                        help="buffers of the largest instance given to others")
    args = parser.parse_args()
    if not (args.shared / "instances").is_dir():
        raise SystemExit(f"skipped: no folder {args.shared / 'instances'}. Give it with --shared.")
    return args


def main() -> None:
    args = parse()
    omnimalloc, allocators = find_omnimalloc(args.omnimalloc)
    has_program = shutil.which("minimalloc") is not None
    print_versions(args, omnimalloc, has_program)
    headings = ["instance", "buffers", "ratio", "worst", "seconds", "method", "asked", "met", *allocators,
                *(["minimalloc program"] if has_program else [])]
    print("| " + " | ".join(headings) + " |")
    print("|" + "---|" * len(headings))
    capacity_seconds, num_solved, num_capacity = 0.0, 0, 0
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "instance_of_others.csv"
        for instance in instances(args, Path(folder)):
            figures = measure(instance, args)
            row = describe(instance, figures)
            if instance.capacity:
                capacity_seconds += figures.second
                num_solved += max(figures.peaks) <= instance.capacity
                num_capacity += 1
            is_compared = instance.num_buffers <= args.compare_up_to
            if is_compared and (allocators or has_program):
                write_csv(instance, source)
            for allocator in allocators:
                cell = measure_omnimalloc(instance, figures.lower_bound_bytes, allocator, args.omnimalloc, source) if is_compared else "-"
                row += f" {cell} |"
            if has_program:
                row += f" {measure_minimalloc_program(instance, source)} |"
            print(row, flush=True)
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"\nWith a capacity: {num_solved} of {num_capacity} solved, {capacity_seconds:.2f} s together "
          f"(asked: all in {_CAPACITY_TOTAL_S:g} s). Largest memory of this process, reading the files included: "
          f"{peak_mib:.0f} MiB (asked at 1m: under 2048).")


if __name__ == "__main__":
    main()
