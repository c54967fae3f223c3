"""Replays every recorded trace: native, expandable, and our engine in a first and a second run. Prints a markdown table.

    python benchmarks/replay_table.py [--traces DIR] [--limits] [--handover] [--dynamic plan] [NAME ...]
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import tempfile
from pathlib import Path
from typing import Any

from stalloc_accel.config import StallocConfig
from stalloc_accel.replay import ReplayFigures, UnsafeReuseError, least_limit, replay
from stalloc_accel.trace import read_traces

_SETTLED_STEP = 4  # from here on a second run counts as steady


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="traces, without .pickle.gz; all _nat ones by default")
    parser.add_argument("--traces", type=Path, default=Path(__file__).parents[2] / "shared" / "traces", metavar="DIR")
    parser.add_argument("--limits", action="store_true", help="also bisect the least limit of each")
    parser.add_argument("--handover", action="store_true", help="as for a host whose use of streams was audited")
    parser.add_argument("--dynamic", choices=("auto", "plan", "off"), default="auto", help="as in the configuration")
    args = parser.parse_args()
    names = args.names or sorted(path.name.removesuffix(".pickle.gz") for path in args.traces.glob("*_nat.pickle.gz"))
    if not names:
        print(f"skipped: no traces in {args.traces}", file=sys.stderr)
        return 0
    print("| trace | run | state | E whole | E steady | native | expandable | hits | gaps | reserved / allocated GiB "
          "| arena / bound | plan s | fallbacks |" + (" least limit |" if args.limits else ""))
    print("|---" * (13 + args.limits) + "|")
    failures = sum(_print_rows(args.traces, name, args) for name in names)
    return 1 if failures else 0


def _print_rows(directory: Path, name: str, args: argparse.Namespace) -> int:
    handover, settings = args.handover, {"handover": "audited" if args.handover else "none", "dynamic": args.dynamic}
    marks = directory / f"{name}.marks.json"
    trace = read_traces(directory / f"{name}.pickle.gz", marks if marks.exists() else None)[0].to_core()
    native, expandable = replay(trace, "native"), replay(trace, "expandable")
    with tempfile.TemporaryDirectory() as store:
        config = StallocConfig(cache_dir=store, log_level="error", **settings)
        for run in (1, 2):
            try:
                ours = replay(trace, "stalloc", config=config, name=name, handover_audited=handover)
            except UnsafeReuseError as error:
                print(f"| {name} | {run} | UNSAFE: {error} |", flush=True)
                return 1
            _print_row(name, run, ours, native, expandable)
            if args.limits and run == 2:
                least = {policy.policy: least_limit(_attempt(trace, policy.policy, dataclasses.replace(config, cache="readonly"), name, handover), policy)
                         for policy in (native, expandable, ours)}
                print(f"| {name} | 2 | least limit | " + " | ".join(
                    f"{policy} {one['least_bytes'] / 2**30:.2f} GiB ({one['over_allocated_peak']:.3f}, {one['flushes']} flushes)"
                    for policy, one in least.items()) + " |", flush=True)
    return 0


def _attempt(trace: Any, policy: str, config: StallocConfig, name: str, handover: bool) -> Any:
    return lambda limit: replay(trace, policy, config=config, name=name, limit_bytes=limit, handover_audited=handover)


def _print_row(name: str, run: int, ours: ReplayFigures, native: ReplayFigures, expandable: ReplayFigures) -> None:
    summary = ours.summary or {}
    plan = summary.get("plan") or {}
    first = ours.activated_at_step if run == 1 else _SETTLED_STEP
    steady_from = _SETTLED_STEP if first is None else first
    requests = summary.get("requests") or 0
    peaks = ours.peaks()
    state = summary.get("state", "?") + ("" if ours.activated_at_step is None else f" from {ours.activated_at_step}")
    cells = [name, run, state, *(f"{figures:.4f}" for figures in (peaks.efficiency, ours.peaks(steady_from).efficiency)),
             *(f"{one.peaks().efficiency:.3f}/{one.peaks(steady_from).efficiency:.3f}" for one in (native, expandable)),
             f"{summary.get('hit_rate') or 0:.4f}", f"{summary.get('gap_hits', 0) / requests if requests else 0:.4f}",
             f"{peaks.reserved_bytes / 2**30:.2f} / {peaks.allocated_bytes / 2**30:.2f}",
             f"{plan.get('arena_bytes', 0) / 2**30:.2f} / {plan.get('lower_bound_bytes', 0) / 2**30:.2f}",
             f"{plan.get('seconds') or 0:.2f}", f"{summary.get('fallbacks') or ''} {summary.get('reason') or ''}"]
    print("| " + " | ".join(str(cell) for cell in cells) + " |", flush=True)


if __name__ == "__main__":
    sys.exit(main())
