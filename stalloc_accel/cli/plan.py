"""`stalloc plan`: places the buffers of a CSV file so that the peak address is small."""

from __future__ import annotations

import argparse
import csv
import json
import os
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

from stalloc_accel.errors import StallocError, describe

_COLUMNS = ("id", "lower", "upper", "size")
_MAX_THREADS = 8  # more attempts at once hardly find more
_CAPACITY_DEADLINE_S = 5.0  # at least, where a capacity is given: yes or no is worth a longer wait than a little less


class InstanceError(StallocError):
    """A file that is not a placement problem."""


@dataclass(frozen=True)
class Instance:
    """Buffers of a file: int64[num_buffers] each. `offset` is -1 where the file gives none."""

    ids: list[str] | np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    size: np.ndarray
    offset: np.ndarray


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "plan",
        help="place the buffers of a CSV file",
        description="Place buffers with known lifetimes so that the peak address is small. The file has the columns "
        "id, lower, upper, size: half-open lifetimes, sizes in bytes. Rows with an offset in a fifth column keep it.",
    )
    parser.add_argument("file", metavar="FILE.csv")
    parser.add_argument("--align", type=int, default=1, metavar="N", help="offsets and sizes are rounded up to it (default: 1)")
    parser.add_argument("--deadline", type=float, metavar="S", help="seconds to improve for (default: by the number of buffers)")
    parser.add_argument("--capacity", type=int, default=0, metavar="BYTES", help="stop at the first placement that fits in it, or when none can")
    parser.add_argument("--threads", type=int, metavar="N", help="default: the number of cores, at most 8")
    parser.add_argument("--seed", type=int, default=7, metavar="N", help="of the search (default: 7)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("-o", metavar="OUT.csv", dest="output", help="write the buffers with their offsets")


def default_deadline_s(num_buffers: int) -> float:
    """What a person waits for without wondering; most searches end long before, at the lower bound."""
    for limit, seconds in ((2_000, 0.9), (12_000, 1.7), (50_000, 9.4), (150_000, 7.5)):
        if num_buffers <= limit:
            return seconds
    return 40.0


def run(args: argparse.Namespace) -> int:
    """Returns 0, 1 where no placement below the capacity was found in time, 2 on bad input."""
    try:
        _check_options(args)
        instance = read_instance(args.file)
        answer, offsets = plan(instance, args)
    except UnicodeDecodeError:
        print(f"stalloc plan: read {args.file}: encoding is not UTF-8, must be a CSV text. Give another file.", file=sys.stderr)
        return 2
    except (InstanceError, ValueError, OSError) as error:
        print(f"stalloc plan: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    if args.output:
        write_instance(args.output, instance, offsets)
    if args.json:
        print(json.dumps(answer))
    else:
        print(_sentence(answer))
    if args.capacity and answer["peak_bytes"] > args.capacity:
        print(f"stalloc plan: no placement below --capacity {args.capacity} found in {answer['elapsed_s']:.1f} s; whether "
              "there is one is not known. Give a longer --deadline.", file=sys.stderr)
        return 1
    return 0


def _check_options(args: argparse.Namespace) -> None:
    checks = [("--align", args.align, args.align >= 1, "must be at least 1"),
              ("--capacity", args.capacity, args.capacity >= 0, "must not be negative"),
              ("--deadline", args.deadline, args.deadline is None or 0 <= args.deadline < 1e6, "must lie in [0, 1000000)"),
              ("--threads", args.threads, args.threads is None or 1 <= args.threads <= 1024, "must lie in [1, 1024]"),
              ("--seed", args.seed, 0 <= args.seed < 2**64, "must lie in [0, 2^64)")]
    for name, value, is_good, rule in checks:
        if not is_good:
            raise InstanceError(describe("read the options", name, value, rule, "See stalloc plan --help."))


def plan(instance: Instance, args: argparse.Namespace) -> tuple[dict[str, Any], np.ndarray]:
    from stalloc_accel import _core

    given = instance.offset >= 0
    lower, upper, size = (np.ascontiguousarray(a[~given]) for a in (instance.lower, instance.upper, instance.size))
    obstacles = np.stack([instance.lower, instance.upper, instance.offset, instance.size], axis=1)[given]
    deadline_s = args.deadline
    if deadline_s is None:
        deadline_s = max(default_deadline_s(len(instance.lower)), _CAPACITY_DEADLINE_S if args.capacity else 0.0)
    threads = args.threads or min(_MAX_THREADS, len(os.sched_getaffinity(0)))
    placement = _core.place(lower, upper, size, alignment=args.align, deadline_s=deadline_s, capacity=args.capacity,
                            num_threads=threads, seed=args.seed,
                            obstacles=np.ascontiguousarray(obstacles) if given.any() else None)
    offsets = instance.offset.copy()
    offsets[~given] = placement["offsets"]
    violation = _core.find_violation(instance.lower, instance.upper, offsets, instance.size, placement["peak_bytes"])
    if violation:
        raise InstanceError(f"check the placement: {violation} Give no offsets that share bytes.")
    peak, lower_bound = placement["peak_bytes"], placement["lower_bound_bytes"]
    if args.capacity and placement["proved_bound_bytes"] > args.capacity:
        raise InstanceError(describe("plan", "--capacity", args.capacity,
                                     f"must be at least {placement['proved_bound_bytes']}, below which nothing fits", "Give more."))
    answer = {"num_buffers": len(offsets), "lower_bound_bytes": lower_bound, "peak_bytes": peak,
              "ratio": peak / lower_bound if lower_bound else 1.0, "optimal": placement["optimal"],
              "elapsed_s": placement["elapsed_s"], "method": placement["method"]}
    return answer, offsets


def read_instance(path: str) -> Instance:
    """Raises InstanceError with the first line that cannot be meant, OSError where the file cannot be read."""
    with open(path, encoding="utf-8-sig", newline="") as file:
        header = [name.strip() for name in file.readline().split(",")]
        if not set(_COLUMNS) <= set(header) or len(set(header)) != len(header):
            raise InstanceError(describe(f"read {path}", "header", ",".join(header), "must have id,lower,upper,size once each",
                                         "Give a CSV file with that first line."))
        at = {name: header.index(name) for name in header}
        position = file.tell()
        try:
            if not file.read(1):
                raise ValueError("no rows")
            file.seek(position)
            table = np.loadtxt(file, delimiter=",", dtype=np.int64, ndmin=2, comments=None)
            if table.shape[1] != len(header):
                raise ValueError("columns")
            columns = {name: np.ascontiguousarray(table[:, at[name]]) for name in at}
        except (ValueError, OverflowError):  # names as ids, empty offsets, or an error that needs its line
            file.seek(position)
            columns = _read_rows(path, file, at)
    offset = columns.get("offset")
    if offset is None:
        offset = np.full(len(columns["lower"]), -1, dtype=np.int64)
    elif len(offset) and offset.min() < -1:
        raise InstanceError(describe(f"read {path}", "offset", int(offset.min()), "must not be negative", "Leave it empty."))
    instance = Instance(columns["id"], columns["lower"], columns["upper"], columns["size"], offset)
    _check_instance(path, instance)
    return instance


def _read_rows(path: str, file: Any, at: dict[str, int]) -> dict[str, Any]:
    columns: dict[str, Any] = {name: [] for name in at}
    for line, row in enumerate(csv.reader(file), start=2):
        if not row:
            continue
        if len(row) != len(at):
            raise InstanceError(describe(f"read {path}", f"fields of line {line}", len(row), f"must be {len(at)}", "Repair it."))
        for name, index in at.items():
            text = row[index].strip()
            if name not in ("lower", "upper", "size", "offset"):
                columns[name].append(text)
                continue
            try:
                value = -1 if name == "offset" and not text else int(text)
                if not -(2**63) <= value < 2**63:
                    raise ValueError
            except ValueError:
                raise InstanceError(describe(f"read {path}", f"{name} of line {line}", text,
                                             "must be a whole number of 64 bits", "Repair it.")) from None
            columns[name].append(value)
    for name in ("lower", "upper", "size", "offset"):
        if name in columns:
            columns[name] = np.array(columns[name], dtype=np.int64)
    return columns


def _check_instance(path: str, instance: Instance) -> None:
    if len(set(instance.ids) if isinstance(instance.ids, list) else np.unique(instance.ids)) != len(instance.lower):
        seen: set[Any] = set()
        twice = next(i for i in instance.ids if i in seen or seen.add(i))
        raise InstanceError(describe(f"read {path}", "id", str(twice), "must not occur twice", "Give each buffer its own."))
    for name, values, rule in (("lower", instance.lower, instance.lower >= 0), ("size", instance.size, instance.size > 0),
                               ("upper", instance.upper, instance.upper > instance.lower)):
        bad = np.flatnonzero(~rule)
        if len(bad):
            rules = {"lower": "must not be negative", "size": "must be positive", "upper": "must be greater than lower"}
            raise InstanceError(describe(f"read {path}", f"{name} of buffer {instance.ids[bad[0]]}", int(values[bad[0]]),
                                         rules[name], "Repair it or leave it out."))


def write_instance(path: str, instance: Instance, offsets: np.ndarray) -> None:
    with open(path, "w", encoding="utf-8", newline="") as file:
        file.write("id,lower,upper,size,offset\n")
        rows = zip(instance.ids, instance.lower.tolist(), instance.upper.tolist(), instance.size.tolist(),
                   offsets.tolist(), strict=True)
        csv.writer(file, lineterminator="\n").writerows(rows)


def _sentence(answer: dict[str, Any]) -> str:
    proof = "optimal" if answer["optimal"] else f"{(answer['ratio'] - 1) * 100:.3f}% above the lower bound"
    return (f"{answer['num_buffers']} buffers in {answer['peak_bytes']} bytes ({proof}), "
            f"{answer['elapsed_s']:.3f} s, {answer['method']}")
