"""Runs features of torch and of its libraries once with torch's own allocator and once with ours, and compares.

    python tests/gpu/parity.py AREA native|ours OUT [--after FEATURE]

An area is a module features_AREA.py with a FeatureTable. Each side is a process of its own, so that the native one
has never seen us. What a feature returns is JSON: equal on both sides, but for keys that begin with "shown ", which are
for the reader of the table. test_parity.py starts the processes and judges.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import faulthandler
import importlib
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
AREAS = ("figures", "history", "limits", "streams", "graphs", "compile", "processes", "distributed", "training", "libraries",
         "settings")
SHOWN = "shown "
MIB = 1 << 20
MAX_EXIT_S = 60  # what a process may take to end


class Unavailable(Exception):
    """What a feature needs is not on this machine; the text says what."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Feature:
    """One line of the table. `run` gets a Side and returns JSON."""

    name: str
    run: Callable[[Any], Any]
    arena_bytes: int = 64 * MIB
    """Free space that ours serves from; 0 where `run` makes its own plan or there is to be none."""
    served: bool = True
    """Whether something has to come from the arena, without which the comparison says nothing."""
    tolerance: float = 0.0
    """Relative, of numbers that are no whole numbers."""
    seconds: float = 60.0
    """What it may take."""
    why: str = ""
    """For the reader: why what is shown differs, or how it is handled."""


class FeatureTable:
    """The features of one area, in order. `variants` are the environments that all of them run in, and `refused` those in
    which ours has to stay off."""

    def __init__(self, area: str, variants: dict[str, dict[str, str]] | None = None, refused: tuple[str, ...] = ()) -> None:
        self.area = area
        self.variants = variants or {"": {}}
        self.refused = refused
        self.features: list[Feature] = []

    def __call__(self, name: str, **options: Any) -> Callable[[Callable], Callable]:
        def add(run: Callable[[Any], Any]) -> Callable[[Any], Any]:
            self.features.append(Feature(name=name, run=run, **options))
            return run

        return add


def table_of(area: str) -> FeatureTable:
    return importlib.import_module(f"features_{area}").features


def without_numbers(text: str) -> str:
    """`text` with each number, and the unit after it, replaced: two runs never use the same bytes."""
    text = re.sub(r"0x[0-9a-f]+", "N", text)
    return re.sub(r"\d[\d.,]*( ?(bytes|[KMGT]?i?B)\b)?", "N", text)


def difference(native: Any, ours: Any, tolerance: float, path: str = "") -> str:
    """Where the two first differ, in words; empty when they are the same."""
    if isinstance(native, dict) and isinstance(ours, dict):
        if native.keys() != ours.keys():
            return f"{path or 'result'}: keys {sorted(native.keys() ^ ours.keys())} are on one side only"
        for key in native:
            if not key.startswith(SHOWN) and (found := difference(native[key], ours[key], tolerance, f"{path}.{key}")):
                return found
        return ""
    if isinstance(native, list) and isinstance(ours, list):
        if len(native) != len(ours):
            return f"{path or 'result'}: {len(native)} entries against {len(ours)}"
        return next((found for index, pair in enumerate(zip(native, ours))
                     if (found := difference(*pair, tolerance, f"{path}[{index}]"))), "")
    if isinstance(native, float) and isinstance(ours, float) and tolerance:
        same = math.isclose(native, ours, rel_tol=tolerance, abs_tol=tolerance * 1e-3)
    else:
        same = type(native) is type(ours) and native == ours
    return "" if same else f"{path or 'result'}: {native!r} against {ours!r}"


# --- one side, in its own process ---


def run_feature(feature: Feature, side: Any) -> dict[str, Any]:
    begun = time.monotonic()
    faulthandler.dump_traceback_later(feature.seconds, exit=True)  # a feature that hangs says where
    outcome: dict[str, Any] = {"feature": feature.name}
    try:
        side.begin(feature.arena_bytes)
        outcome["result"] = json.loads(json.dumps(feature.run(side)))
    except Unavailable as missing:
        outcome["unavailable"] = str(missing)
    except BaseException:
        outcome["raised"] = traceback.format_exc()
    try:
        outcome |= side.end()
    except BaseException:
        outcome.setdefault("raised", traceback.format_exc())
    faulthandler.cancel_dump_traceback_later()
    return {**outcome, "seconds": round(time.monotonic() - begun, 2)}


def run_side(area: str, side_name: str, out: Path, after: str | None) -> None:
    from side import make_side

    features = table_of(area).features
    names = [feature.name for feature in features]
    side = make_side(side_name)
    with out.open("a") as lines:
        for feature in features[names.index(after) + 1 if after else 0 :]:
            lines.write(json.dumps(run_feature(feature, side)) + "\n")
            lines.flush()
    faulthandler.dump_traceback_later(MAX_EXIT_S, exit=True)


# --- both sides, from the process that judges ---


def environment_of(variant: dict[str, str], folder: Path) -> dict[str, str]:
    """What a side's process gets. Nothing of ours but what make_side installs."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("STALLOC_")}
    return {
        **kept, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"), "TRITON_CACHE_DIR": str(folder / "triton"),
        "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parents[1]), kept.get("PYTHONPATH", "")]),
        "STALLOC_CACHE_DIR": str(folder / "plans"), "OMP_NUM_THREADS": "2", **variant,
    }


def run_process(command: list[str], environment: dict[str, str], limit_s: float) -> str:
    """What was wrong with its end; empty when it ended well."""
    with tempfile.TemporaryFile() as log:  # no pipe, which a child of a dead process would keep open
        try:
            status = subprocess.run(command, env=environment, stdout=log, stderr=log, timeout=limit_s).returncode
        except subprocess.TimeoutExpired:
            return f"no end after {limit_s:.0f} s"
        log.seek(0)
        return f"exit status {status}\n{log.read().decode(errors='replace')[-4000:]}" if status else ""


def outcomes_in(text: str) -> dict[str, dict[str, Any]]:
    """By feature; a line that a dying process left unfinished is passed over."""
    lines = [line for line in text.splitlines() if line.startswith("{") and line.endswith("}")]
    return {outcome["feature"]: outcome for outcome in map(json.loads, lines)}


def collect(area: str, side: str, variant: str) -> dict[str, dict[str, Any]]:
    """What one side says of each feature. A process that ends too early is started again after the feature it was at."""
    table = table_of(area)
    names = [feature.name for feature in table.features]
    outcomes: dict[str, dict[str, Any]] = {}
    after: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "outcomes")
        while len(outcomes) < len(names):
            out.write_text("")
            command = [sys.executable, str(HERE / "parity.py"), area, side, str(out), *after]
            limit_s = 120 + sum(feature.seconds for feature in table.features)
            complaint = run_process(command, environment_of(table.variants[variant], Path(folder)), limit_s)
            outcomes |= outcomes_in(out.read_text())
            if not complaint and len(outcomes) == len(names):
                break
            # It ended in the middle of a feature, before the first of them, or badly after the last.
            at = next((name for name in names if name not in outcomes), names[-1])
            outcomes.setdefault(at, {"feature": at, "seconds": 0.0})["ended"] = complaint or "exit status 0, too early"
            after = ["--after", at]
    return outcomes


def compare(area: str, variant: str) -> list[dict[str, Any]]:
    """One row a feature: what both sides gave, whether that is the same, and what is wrong where it is not.

    The two sides run at once; what they measure is their own.
    """
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        native, ours = pool.map(lambda side: collect(area, side, variant), ("native", "ours"))
    return [judge(area, variant, feature, native[feature.name], ours[feature.name]) for feature in table_of(area).features]


def judge(area: str, variant: str, feature: Feature, native: dict[str, Any], ours: dict[str, Any]) -> dict[str, Any]:
    row = {"area": area, "variant": variant, "feature": feature.name, "why": feature.why, "native": native.get("result"),
           "ours": ours.get("result"), "served": ours.get("served", 0), "seconds": [native["seconds"], ours["seconds"]]}
    for outcome in (native, ours):
        if "unavailable" in outcome:
            return {**row, "status": "skipped", "problem": outcome["unavailable"]}
    problem = next((f"{side}: {outcome[key]}" for side, outcome in (("native", native), ("ours", ours))
                    for key in ("ended", "raised", "unclean") if outcome.get(key)), "")
    problem = problem or difference(native["result"], ours["result"], feature.tolerance)
    refusal = ours.get("refused", "")
    if not problem and bool(refusal) != (variant in table_of(area).refused):
        problem = f"ours stayed off: {refusal!r}"
    if not problem and not refusal and feature.served and ours["served"] == 0:
        problem = "nothing was served from the arena, so that the comparison says nothing"
    why = f"ours stays off: {refusal}" if refusal else feature.why
    return {**row, "why": why, "status": "differs" if problem else "same", "problem": problem}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("area")
    parser.add_argument("side")
    parser.add_argument("out", type=Path)
    parser.add_argument("--after")
    args = parser.parse_args()
    run_side(args.area, args.side, args.out, args.after)


if __name__ == "__main__":
    # Under the name that the features know: an exception of __main__ would be another class.
    import parity

    parity.main()
