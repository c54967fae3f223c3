"""A short served training run for tools that watch a whole program:

    compute-sanitizer --tool memcheck python3 tests/gpu/short_run.py

Prints what the engine served; the exit status is 1 when most of it was not.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[2])]

import torch  # noqa: E402
from gpu_helpers import Training  # noqa: E402

from stalloc_accel import _core, extension  # noqa: E402

NUM_STEPS = 5


def main(width: int) -> int:
    module = extension.load("cuda")
    module.install()
    engine = module.engine(0)
    training = Training(width=width)
    for _ in range(2):
        training.step()
        engine.end_step()
    engine.start_recording(1 << 20)
    for _ in range(3):
        training.step()
        engine.end_step()
    trace = engine.recorded()
    plan = _core.build_plan(trace, False)
    engine.stop_recording()
    torch.cuda.empty_cache()
    if not engine.activate(plan, 0):
        print("no room for the arena")
        return 1
    before = engine.stats()
    for _ in range(NUM_STEPS):
        training.step()
        engine.end_step()
    stats = engine.stats()
    requests, hits = stats["requests"] - before["requests"], stats["slot_hits"] - before["slot_hits"]
    fallbacks = {reason: count for reason, count in stats["fallbacks"].items() if count}
    steps = [int((trace["event_size"][a:b] > 0).sum()) for a, b in zip(trace["step_begin"], trace["step_begin"][1:])]
    print(f"width {width}: {hits} of {requests} requests served from their slots in {NUM_STEPS} steps, {fallbacks}; "
          f"recorded {steps}, plan of {len(plan['slot_size'])} slots, {stats}")
    return 0 if hits >= 0.95 * requests else 1


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 128))
