"""What an allocation and its free cost in the engine alone. Needs no GPU and no torch.

    python benchmarks/engine_pair.py [--slots 100000] [--repeats 5] [SCENARIO ...]

Prints JSON: for each scenario the median ns of a pair, and how often the hot path asked for host memory. Of several runs the
one with the least time counts: what else runs on the machine only adds to it.

    slots          each request finds its slot
    recorded       the same while recording
    gaps_small     no slot foretells the request of 1 MiB or more (smaller ones go upstream), few blocks live
    gaps_large     a step of training in which every second request has no slot, thousands of blocks live: the mean of both
    gaps_recorded  the same while recording
    threads_N      N threads at once, each request finds a slot: what a pair takes one thread
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("core", "runtime")


def objects(folder: Path) -> list[Path]:
    """The engine's objects: those that the last build left, or, where it left none, new ones in `folder`."""
    sources = [path for name in FOLDERS for path in sorted((ROOT / "csrc" / name).glob("*.cpp"))]
    for build in sorted((ROOT / "build").glob("core-*")):
        built = [build / "csrc" / path.parent.name / f"{path.stem}.o" for path in sources]
        if all(path.exists() and path.stat().st_mtime >= source.stat().st_mtime for path, source in zip(built, sources)):
            return built
    made = [folder / f"{path.parent.name}-{path.stem}.o" for path in sources]
    for path, source in zip(made, sources):
        subprocess.run(["g++", "-std=c++17", "-O2", "-fPIC", f"-I{ROOT / 'csrc'}", "-c", str(source), "-o", str(path)], check=True)
    return made


def build(folder: Path) -> Path:
    """Builds engine_pair.cpp in `folder`."""
    program = folder / "engine_pair"
    subprocess.run(["g++", "-std=c++17", "-O2", "-Wall", "-Wextra", f"-I{ROOT / 'csrc'}",
                    str(ROOT / "benchmarks" / "engine_pair.cpp"), *map(str, objects(folder)), "-pthread", "-o", str(program)],
                   check=True)
    return program


def run(num_slots: int, scenarios: Sequence[str] = (), repeats: int = 1) -> dict[str, dict[str, Any]]:
    """Builds the program and runs it `repeats` times. By scenario, what its fastest run printed."""
    best: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as name:
        program = build(Path(name))
        for _ in range(repeats):
            done = subprocess.run([str(program), str(num_slots), *scenarios], capture_output=True, text=True, check=True, timeout=120)
            for scenario, figures in json.loads(done.stdout).items():
                if scenario not in best or figures["pair_ns"] < best[scenario]["pair_ns"]:
                    best[scenario] = figures
    return best


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help="all by default; threads stands for all threads_N")
    parser.add_argument("--slots", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    print(json.dumps(run(args.slots, args.scenarios, args.repeats), indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
