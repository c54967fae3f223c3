"""`stalloc analyze`: what a memory snapshot says, in plain words first."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from stalloc_accel.cli import _trace_file
from stalloc_accel.errors import StallocError, describe

_MAX_GROUPS = 20  # of streams and pools in the text


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "analyze", help="explain a torch memory snapshot",
        description="Says whether a snapshot from torch.cuda.memory._dump_snapshot() shows fragmentation or memory that is "
                    "really in use, what holds it, and what helps.")
    _trace_file.add_argument(parser, "snapshot")
    parser.add_argument("--device", type=int, metavar="N", help="which device of a file with several (else the fullest)")
    parser.add_argument("--html", metavar="FILE", help="write a page with the picture of the memory; it needs no network")
    parser.add_argument("--export-snapshot", metavar="FILE", help="write a snapshot that pytorch.org/memory_viz reads")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of text")


def run(args: argparse.Namespace) -> int:
    try:
        _analyze(args)
    except (StallocError, OSError) as error:
        return _trace_file.refuse("analyze", error)
    return 0


def _analyze(args: argparse.Namespace) -> None:
    from stalloc_accel.report.analysis import analyze
    from stalloc_accel.report.export import export_snapshot
    from stalloc_accel.report.page import write_page
    from stalloc_accel.trace import read_devices
    devices, snapshot = read_devices(args.snapshot)
    device, trace = _chosen(devices, args.device)
    result = analyze(device, snapshot, trace, Path(args.snapshot).name)
    if args.html is not None:
        write_page(result, Path(args.html))
    if args.export_snapshot is not None:
        export_snapshot(Path(args.export_snapshot), device, device.history if trace is None else trace.history, snapshot)
    if args.json:
        print(json.dumps(result.to_json(), indent=1))
    else:
        _print_text(result, [one.index for one, _ in devices])


def _chosen(devices: list[tuple[Any, Any]], index: int | None) -> tuple[Any, Any]:
    if index is None:
        return max(devices, key=lambda pair: (int(pair[0].segments.size.sum()), len(pair[0].history)))
    for device, trace in devices:
        if device.index == index:
            return device, trace
    raise StallocError(describe("analyze", "device", index, "the file says nothing of it",
                                f"It has {', '.join(str(device.index) for device, _ in devices)}."))


def _print_text(result: Any, device_indices: list[int]) -> None:
    from rich.console import Console
    from rich.table import Table
    from stalloc_accel.report.verdict import gib
    console = Console(width=None if sys.stdout.isatty() else 140, highlight=False, markup=False)
    console.print(f"{result.verdict[0].upper()}{result.verdict[1:]}", style="bold")
    console.print(result.explanation)
    if result.would_have_fitted is not None:
        console.print(f"With a plan the failed request would {'' if result.would_have_fitted else 'not '}have fitted.")
    console.print()
    for line in _figure_lines(result, gib):
        console.print(line)
    console.print("\nWhat to do, best first:" if result.advice else "")
    for number, one in enumerate(result.advice, 1):
        console.print(f"  {number}. {one.text}")
    if result.holders:
        table = Table(title="Largest holders", title_justify="left")
        for name in ("place", "blocks", "bytes"):
            table.add_column(name, justify="left" if name == "place" else "right", overflow="fold")
        for holder in result.holders[:10]:
            table.add_row(holder.place, f"{holder.num_blocks:,}", gib(holder.size_bytes))
        console.print()
        Console(width=console.width, markup=False).print(table)
    for group in result.groups[:_MAX_GROUPS]:
        console.print(f"stream {group['stream']}, pool {group['pool']}: {gib(group['reserved_bytes'])} reserved, "
                      f"{gib(group['stranded_bytes'])} stranded between live blocks, {gib(group['whole_free_bytes'])} in free segments")
    if len(result.groups) > _MAX_GROUPS:
        console.print(f"and {len(result.groups) - _MAX_GROUPS} more streams and pools with less")
    if len(device_indices) > 1:
        console.print(f"This is device {result.device_index} of {device_indices}; choose with --device.")


def _figure_lines(result: Any, gib: Any) -> list[str]:
    lines = [f"allocated at the peak {gib(result.allocated_peak_bytes)}, reserved {gib(result.reserved_peak_bytes)}"
             + {"model": " (by our model: the file does not tell)", "state": " (now)"}.get(result.reserved_from, "")]
    if result.plan is not None:
        plan = result.plan
        lines.append(f"a plan would reserve {gib(plan.reserved_bytes)} (lower bound {gib(plan.lower_bound_bytes)}): "
                     f"{gib(result.reserved_peak_bytes - plan.reserved_bytes)} less")
        lines.append(f"keeping streams apart costs a plan {gib(plan.streams_apart_bytes)}, late frees {gib(plan.delayed_bytes)}")
    if result.limits:
        lines.append("least device memory: " + ", ".join(
            f"{name} {gib(limit['least_bytes'])}" + (f" with {limit['flushes']} flushes" if limit["flushes"] else "")
            for name, limit in result.limits.items()))
    lines.append(f"persistent {gib(result.persistent_bytes)}, temporary {gib(result.temporary_bytes)}")
    if result.num_events:
        steps = {"periodicity": " (found by their period)", "none": ""}.get(result.steps_from, "")
        lines.append(f"{result.num_events:,} events, {result.num_steps} steps{steps}, "
                     f"{result.num_rebuilt:,} events rebuilt for blocks from before the recording")
    return lines
