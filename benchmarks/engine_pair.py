"""What an allocation and its free cost in the engine alone, with a plan of 100,000 slots. Needs no GPU and no torch.

    python benchmarks/engine_pair.py [--slots 100000]

Prints JSON: the median ns of a pair served from its slot, the same while recording, and of one served from a gap; and how
often each asked for host memory.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
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


def run(num_slots: int) -> dict[str, Any]:
    """Builds and runs engine_pair.cpp."""
    with tempfile.TemporaryDirectory() as name:
        program = Path(name, "engine_pair")
        subprocess.run(["g++", "-std=c++17", "-O2", "-Wall", "-Wextra", f"-I{ROOT / 'csrc'}",
                        str(ROOT / "benchmarks" / "engine_pair.cpp"), *map(str, objects(Path(name))), "-pthread", "-o", str(program)],
                       check=True)
        done = subprocess.run([str(program), str(num_slots)], capture_output=True, text=True, check=True, timeout=120)
    return json.loads(done.stdout)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--slots", type=int, default=100_000)
    print(json.dumps(run(parser.parse_args().slots), indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
