"""What an allocation and its free cost through us and through torch's own allocator, in one process, in ns.

    python benchmarks/gpu_pair.py [--out pairs.json]

Each figure is the median of several measurements, each of which is a median over batches of pairs. With threads, the
figure is what a pair takes one thread while all of them make pairs at once.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parents[1] / "tests" / "gpu"), str(Path(__file__).resolve().parents[1])]

import torch  # noqa: E402
from arena import Arena  # noqa: E402

from stalloc_accel import extension  # noqa: E402

SIZES = (512, 1 << 16, 1 << 22)
NUM_PAIRS = 50_000
NUM_SLOTS = 2000
THREADS = (1, 2, 4, 8, 16)
REPEATS = 7
MAX_SERVED_RATIO, MAX_RECORDING_NS = 0.3, 100.0


class Bench:
    """The rows measured so far."""

    def __init__(self, arena: Arena) -> None:
        self.arena = arena
        self.rows: list[dict[str, Any]] = []

    def measure(self, what: str, size: int, pair: Callable[[], tuple[float, float]], num_threads: int = 1) -> dict[str, Any]:
        """One row from REPEATS calls of `pair`, which gives ns through ours and through the native allocator."""
        measured = [pair() for _ in range(REPEATS)]
        ours, native = (statistics.median(side) for side in zip(*measured))
        row = {"what": what, "size_bytes": size, "threads": num_threads, "ours_ns": round(ours, 1), "native_ns": round(native, 1),
               "ratio": round(ours / native, 3)}
        self.rows.append(row)
        print(f"{what:28} {size:8} bytes {num_threads:3} threads: ours {ours:8.1f} ns, native {native:8.1f} ns, {ours / native:.3f}",
              flush=True)
        return row

    def pairs(self, size: int, num_pairs: int = NUM_PAIRS) -> Callable[[], tuple[float, float]]:
        return lambda: self.arena.module.benchmark_pair(size, num_pairs)

    def threads(self, size: int, num_threads: int, num_pairs: int) -> Callable[[], tuple[float, float]]:
        return lambda: self.arena.module.benchmark_threads(size, num_pairs, num_threads)

    def from_slots(self, pair: Callable[[], tuple[float, float]]) -> Callable[[], tuple[float, float]]:
        """The same at the begin of a step, so that each request finds its slot."""

        def measure() -> tuple[float, float]:
            self.arena.engine.end_step()
            return pair()

        return measure


def recording_cost(bench: Bench) -> float:
    """What recording adds to an event, in ns: a pair has two."""
    size = 1 << 16
    plain = bench.measure("passed through", size, bench.pairs(size))
    engine = bench.arena.engine

    def recorded() -> tuple[float, float]:
        engine.start_recording(4 * NUM_PAIRS)
        try:
            return bench.arena.module.benchmark_pair(size, NUM_PAIRS)
        finally:
            engine.stop_recording()

    return (bench.measure("passed through, recorded", size, recorded)["ours_ns"] - plain["ours_ns"]) / 2


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("gpu_pair.json"))
    args = parser.parse_args()
    module = extension.load("cuda")
    module.install()
    torch.zeros(1, device="cuda")
    arena = Arena(module, module.engine(0))
    bench = Bench(arena)

    recording_ns = recording_cost(bench)
    for num_threads in THREADS:
        bench.measure("passed through", 1 << 16, bench.threads(1 << 16, num_threads, 2000), num_threads)
    arena.open(256 << 20)
    served = [bench.measure("served from a gap", size, bench.pairs(size)) for size in SIZES]
    for num_threads in THREADS:
        bench.measure("served from a gap", 1 << 16, bench.threads(1 << 16, num_threads, 2000), num_threads)
    arena.close()

    arena.engine.set_serve_gaps(True)
    arena.serve(lambda: [torch.empty(1 << 16, dtype=torch.uint8, device="cuda").data_ptr() for _ in range(NUM_SLOTS)])
    hits = arena.engine.stats()["slot_hits"]
    served.append(bench.measure("served from its slot", 1 << 16, bench.from_slots(bench.pairs(1 << 16, 1920))))
    threaded = [bench.measure("served from its slot", 1 << 16,
                              bench.from_slots(bench.threads(1 << 16, num_threads, NUM_SLOTS // num_threads - 2)), num_threads)
                for num_threads in THREADS]
    slot_hits = arena.engine.stats()["slot_hits"] - hits
    arena.close()

    properties = torch.cuda.get_device_properties(0)
    figures = {
        "served_ratio_worst": max(row["ratio"] for row in served), "served_ratio_limit": MAX_SERVED_RATIO,
        "recording_ns_an_event": round(recording_ns, 1), "recording_ns_limit": MAX_RECORDING_NS,
        "threads_16_ratio": threaded[-1]["ratio"], "slot_hits": slot_hits,
    }
    print(json.dumps(figures))
    versions = {"torch": torch.__version__, "cuda": torch.version.cuda, "device": properties.name}
    args.out.write_text(json.dumps({"versions": versions, "figures": figures, "rows": bench.rows}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
