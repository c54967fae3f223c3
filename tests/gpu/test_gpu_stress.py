"""Threads, streams, changing plans and an arena that comes and goes: every block keeps its bytes.

STALLOC_STRESS_SECONDS sets how long it runs; STALLOC_TEST_SEED repeats the choices, though not their timing.
"""

from __future__ import annotations

import os
import random
import threading
import time
import traceback

import torch
from gpu_helpers import MIB

SECONDS = float(os.environ.get("STALLOC_STRESS_SECONDS", "10"))
SIZES = [512, 4_000, 60_000, 300_000, MIB, 3 * MIB, 9 * MIB]


class Worker:
    """Fills blocks on a stream of its own, reads them on another one, and frees them in a random order."""

    def __init__(self, index: int, seed: int, streams: list[torch.cuda.Stream]) -> None:
        self.random = random.Random(f"{seed}:{index}")
        self.stream, self.others = streams[index], [s for i, s in enumerate(streams) if i != index]
        self.index, self.rounds = index, 0
        self.error = ""
        self.wrong = torch.zeros(1, dtype=torch.int64, device="cuda")

    def run(self, deadline: float) -> None:
        try:
            with torch.cuda.stream(self.stream):
                kept: list[tuple[torch.Tensor, int]] = []
                while time.monotonic() < deadline:
                    self.one_round(kept)
                for block, value in kept:
                    self.wrong += (block != value).sum()
        except BaseException:
            self.error = traceback.format_exc()

    def one_round(self, kept: list[tuple[torch.Tensor, int]]) -> None:
        self.rounds += 1
        value = self.rounds * 16 + self.index
        size = self.random.choice(SIZES) // 8 + self.random.randrange(64)
        kept.append((torch.full((size,), value, dtype=torch.int64, device="cuda"), value))
        if self.random.random() < 0.3:
            self.read_elsewhere(*kept[-1])
        if len(kept) > 16:
            block, value = kept.pop(self.random.randrange(len(kept)))
            self.wrong += (block != value).sum()

    def read_elsewhere(self, block: torch.Tensor, value: int) -> None:
        other = self.random.choice(self.others)
        other.wait_stream(self.stream)
        with torch.cuda.stream(other):
            torch.cuda._sleep(20_000)
            count = (block != value).sum()
        block.record_stream(other)
        self.stream.wait_stream(other)
        count.record_stream(self.stream)
        self.wrong += count


def test_every_block_keeps_its_bytes_whatever_happens_around_it(arena, seed):
    streams = [torch.cuda.default_stream(), *(torch.cuda.Stream() for _ in range(3))]
    choice = random.Random(seed)

    def step_of(sizes: list[int]):
        def step() -> None:
            for stream in streams:
                with torch.cuda.stream(stream):
                    kept = [torch.empty(size, dtype=torch.uint8, device="cuda") for size in sizes]
                    del kept
        return step

    plans = [arena.record_plan(step_of(choice.choices(SIZES, k=40))) for _ in range(3)]
    workers = [Worker(index, seed, streams) for index in range(len(streams))]
    torch.cuda.synchronize()
    deadline = time.monotonic() + SECONDS
    threads = [threading.Thread(target=worker.run, args=(deadline,)) for worker in workers]
    for thread in threads:
        thread.start()
    engine = arena.engine
    events = 0
    while time.monotonic() < deadline:
        events += 1
        choice.choice([
            lambda: engine.activate(choice.choice(plans), choice.randrange(3)),
            lambda: engine.arm(choice.choice(plans), 0),
            engine.end_step,
            engine.end_step,
            engine.poll_fences,
            lambda: engine.trim(True),
            lambda: engine.set_serve_gaps(choice.random() < 0.8),
            engine.deactivate,
            lambda: torch.cuda.memory_stats(),
            lambda: torch.cuda.memory._snapshot() if choice.random() < 0.1 else None,
        ])()
        time.sleep(0.005)
    for thread in threads:
        thread.join()
    torch.cuda.synchronize()
    stats = engine.stats()
    print(f"{sum(worker.rounds for worker in workers)} blocks, {events} changes, {stats}")
    assert not any(worker.error for worker in workers), [worker.error for worker in workers]
    assert [int(worker.wrong) for worker in workers] == [0] * len(workers)
    assert stats["bad_frees"] == 0
    assert sum(stats["fallbacks"].values()) + stats["slot_hits"] + stats["gap_hits"] > 1000
    engine.deactivate()
    engine.poll_fences()
    engine.poll_fences()
    assert engine.stats()["served_blocks"] == 0 and engine.stats()["awaiting_bytes"] == 0
    engine.trim(True)
    assert engine.stats()["extent_bytes"] == 0
