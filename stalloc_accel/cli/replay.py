"""`stalloc replay`: one history through the models of torch's allocators and through our own engine."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from typing import Any

from stalloc_accel.cli import _trace_file
from stalloc_accel.errors import StallocError, describe

EXIT_UNSAFE = 3


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "replay", help="measure an allocation trace offline",
        description="Replays a recorded history through models of torch's native allocator and of expandable segments, "
                    "and through our own engine over the first.")
    _trace_file.add_argument(parser, "trace")
    parser.add_argument("--marks", metavar="FILE", help="JSON list of event indices where steps begin (else they are found)")
    parser.add_argument("--policy", choices=("native", "expandable", "stalloc", "all"), default="all")
    parser.add_argument("--device", type=int, metavar="N", help="which device of a file with several (else the busiest)")
    parser.add_argument("--profile-steps", type=int, metavar="N", help="steps that our engine records for its plan")
    parser.add_argument("--skip-steps", type=int, metavar="N", help="steps before those")
    parser.add_argument("--store", metavar="DIR", help="plan store; a second replay with it finds the first one's plan")
    parser.add_argument("--handover", choices=("none", "deepspeed"), default="none",
                        help="the host's use of streams was audited: its streams may reuse each other's memory")
    parser.add_argument("--dynamic", choices=("auto", "plan", "off"), default="auto", help="as in the configuration")
    limits = parser.add_mutually_exclusive_group()
    limits.add_argument("--limit", type=_bytes, metavar="BYTES", help="device limit, as torch's memory fraction sets it")
    limits.add_argument("--find-limit", action="store_true", help="find the least limit that survives, for each policy")
    parser.add_argument("--max-split-size-mb", type=_at_least(21), metavar="MB", help="as in PYTORCH_CUDA_ALLOC_CONF")
    parser.add_argument("--garbage-collection-threshold", type=_share, default=0.0, metavar="SHARE",
                        help="as in PYTORCH_CUDA_ALLOC_CONF; needs --limit")
    parser.add_argument("--roundup-power2-divisions", type=_divisions, default=(), metavar="N|[MB:N,...,>:N]",
                        help="as in PYTORCH_CUDA_ALLOC_CONF")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")


def run(args: argparse.Namespace) -> int:
    from stalloc_accel.replay import UnsafeReuseError
    try:
        result = _replay(args)
    except UnsafeReuseError as error:
        print(f"stalloc replay: {error}", file=sys.stderr)
        return EXIT_UNSAFE
    except (StallocError, OSError) as error:
        return _trace_file.refuse("replay", error)
    if args.json:
        print(json.dumps(result, indent=1))
    else:
        _print_table(result)
    return 0


def _replay(args: argparse.Namespace) -> dict[str, Any]:
    from stalloc_accel.replay import POLICIES, least_limit
    from stalloc_accel.trace import read_traces
    trace = _chosen(read_traces(args.trace, args.marks), args.device)
    core = trace.to_core()
    names = POLICIES if args.policy == "all" else (args.policy,)
    figures, limits = {}, {}
    with tempfile.TemporaryDirectory(prefix="stalloc-replay-") as before:
        if args.find_limit and args.store is not None and os.path.isdir(args.store):
            shutil.copytree(args.store, before, dirs_exist_ok=True)
        for name in names:
            figures[name] = _one(args, trace, core, name, args.limit or 0, args.store)
            if args.find_limit:
                limits[name] = least_limit(_attempt(args, trace, core, name, before), figures[name])
    ours = figures.get("stalloc")
    from_step = ours.activated_at_step if ours is not None else None
    return {"trace": trace.name, "device": trace.device_index, "events": len(trace.history), "steps": trace.num_steps,
            "steps_from": trace.steps_from, "rebuilt_events": trace.num_rebuilt, "limit_bytes": args.limit,
            "policies": {name: _shown(one, trace.num_steps, from_step, limits.get(name)) for name, one in figures.items()}}


def _chosen(traces: list[Any], device: int | None) -> Any:
    if device is None:
        return max(traces, key=lambda trace: len(trace.history))
    for trace in traces:
        if trace.device_index == device:
            return trace
    raise StallocError(describe("replay", "device", device, "the file has no history of it",
                                f"It has {', '.join(str(trace.device_index) for trace in traces)}."))


def _one(args: argparse.Namespace, trace: Any, core: Any, policy: str, limit_bytes: int, store: str | None) -> Any:
    from stalloc_accel.config import StallocConfig
    from stalloc_accel.replay import AllocatorOptions, replay
    options = AllocatorOptions(max_split_size_bytes=args.max_split_size_mb and args.max_split_size_mb << 20,
                               garbage_collection_threshold=args.garbage_collection_threshold,
                               roundup_power2_divisions=args.roundup_power2_divisions)
    settings: dict[str, Any] = {"log_level": "error", "cache": "off", "dynamic": args.dynamic}
    if store is not None:
        settings |= {"cache": "readwrite", "cache_dir": store}
    for name in ("profile_steps", "skip_steps"):
        if getattr(args, name) is not None:
            settings[name] = getattr(args, name)
    return replay(core, policy, options=options, limit_bytes=limit_bytes, config=StallocConfig(**settings),
                  name=trace.name, handover_audited=args.handover == "deepspeed")


def _attempt(args: argparse.Namespace, trace: Any, core: Any, policy: str, before: str) -> Any:
    """Every try starts from the plans that the store held before the first replay."""
    def attempt(limit_bytes: int) -> Any:
        if args.store is None or policy != "stalloc":
            return _one(args, trace, core, policy, limit_bytes, None)
        with tempfile.TemporaryDirectory(prefix="stalloc-replay-") as scratch:
            shutil.copytree(before, scratch, dirs_exist_ok=True)
            return _one(args, trace, core, policy, limit_bytes, scratch)

    return attempt


def _shown(figures: Any, num_steps: int, from_step: int | None, limit: dict[str, Any] | None) -> dict[str, Any]:
    from stalloc_accel.report.peaks import peaks_to_json
    summary = figures.summary or {}
    plan = summary.get("plan") or {}
    bound = plan.get("lower_bound_bytes")
    shown = {**peaks_to_json(figures.peaks()),
             "steady": peaks_to_json(figures.peaks(from_step)) if from_step is not None and num_steps else None,
             "activated_at_step": figures.activated_at_step, "hit_rate": summary.get("hit_rate"),
             "fallbacks": summary.get("fallbacks", {}), "plan_seconds": plan.get("seconds"),
             "plan_over_lower_bound": plan["arena_bytes"] / bound if bound else None,
             "seconds": round(figures.seconds, 4), "flushes": figures.flushes, "survived": figures.survived,
             "died_at_event": figures.died_at_event, "requested_peak_bytes": figures.rounded_peak_bytes,
             "step_reserved_bytes": figures.step_reserved.tolist()}
    if summary:
        shown |= {"state": summary["state"], "reason": summary["reason"], "from_store": summary["from_cache"],
                  "stranded_bytes": figures.stranded_bytes}
    if limit is not None:
        shown["limit"] = limit
    return shown


def _print_table(result: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table
    where = {"marks": "given", "file": "from the file", "periodicity": "found by their period", "none": "none found"}
    table = Table(title=f"{result['trace']}: {result['events']:,} events, {result['steps']} steps "
                        f"({where[result['steps_from']]})", title_justify="left")
    for name in ("policy", "allocated peak", "reserved peak", "E", "E steady", "from step", "hits", "flushes", "least limit"):
        table.add_column(name, justify="left" if name == "policy" else "right")
    for name, one in result["policies"].items():
        limit = one.get("limit") or {}
        table.add_row(name, _gib(one["allocated_peak_bytes"]), _gib(one["reserved_peak_bytes"]),
                      "out of memory" if not one["survived"] else _rate(one["efficiency"]),
                      _rate((one["steady"] or {}).get("efficiency")), _text(one["activated_at_step"]),
                      _rate(one["hit_rate"]), str(one["flushes"]),
                      f"{_gib(limit['least_bytes'])} ({limit['over_allocated_peak']:.3f}, {limit['flushes']} flushes)"
                      if limit else "")
    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print(table)
    ours = result["policies"].get("stalloc")
    if ours is not None:
        if ours["reason"]:
            console.print(f"stalloc: {ours['state']}, {ours['reason']}", markup=False)
        if ours["fallbacks"]:
            console.print("not from slots: " + ", ".join(f"{why} {count:,}" for why, count in ours["fallbacks"].items()))


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.2f} GiB"


def _rate(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


def _text(value: Any) -> str:
    return "" if value is None else str(value)


# --- types of arguments ---

def _bytes(text: str) -> int:
    units = {"": 1, "B": 1, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40}
    number = text.rstrip("BKMGTIbkmgti")
    try:
        value = int(float(number) * units[text[len(number):].upper()])
    except (KeyError, ValueError, OverflowError):
        raise argparse.ArgumentTypeError(f"{text!r} is no size: write bytes or, for example, 48GiB") from None
    if not 0 < value <= 1 << 50:
        raise argparse.ArgumentTypeError(f"{text!r} is out of range: from 1 byte to 1024 TiB")
    return value


def _at_least(least: int) -> Any:
    def check(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = -1
        if not least <= value <= 1 << 30:
            raise argparse.ArgumentTypeError(f"{text!r} must be a whole number from {least} on")
        return value

    return check


def _share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} must be a share from 0 up to 1")
    return value


def _divisions(text: str) -> tuple[int, ...]:
    """torch's two spellings: one number, or [MB:N,...,>:N] by power-of-two sizes from 1 MiB to 64 GiB."""
    try:
        if not text.startswith("["):
            return (_power_of_two(text),)
        table = [0] * 16
        filled = 0
        for part in text.strip("[]").split(","):
            size, value = part.split(":")
            index = 16 if size == ">" else _power_of_two(size).bit_length() - 1
            divisions = _power_of_two(value)
            for i in range(filled if size == ">" or filled == 0 else index, min(index + 1, 16)):
                table[i] = divisions
            filled = index + 1
        return tuple(table)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is neither a power of two nor [MB:N,...,>:N]") from None


def _power_of_two(text: str) -> int:
    value = int(text)
    if value < 1 or value & (value - 1) or value > 1 << 20:
        raise ValueError(text)
    return value
