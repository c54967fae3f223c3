"""Random programs on the GPU: every block is filled with a pattern of its own and looked at before it is freed.

    python tests/gpu/stress.py [--seconds 480] [--seed N] [--debug] [--json FILE]

Threads allocate on streams of their own, read each other's blocks, hand blocks over and capture graphs, while the plan,
the phase and the arena change under them at random. A program is one set of threads and plans, with one seed. The exit
status is 1 when a block lost its pattern, when memory was lost, or when a call failed.
"""

from __future__ import annotations

import argparse
import collections
import gc
import itertools
import json
import queue
import random
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[2])]

import torch  # noqa: E402
from arena import Arena  # noqa: E402

MIB = 1 << 20
DEVICE = "cuda"
SIZES = [512, 4_000, 60_000, 300_000, MIB, 3 * MIB, 9 * MIB]
MAX_KEPT = 16
PROGRAM_SECONDS = 8.0
CHANGE_SECONDS = 0.02


class Block:
    """Memory filled with one value, which nothing but itself should ever change."""

    def __init__(self, size: int, value: int) -> None:
        self.data = torch.full((size,), value, dtype=torch.int64, device=DEVICE)
        self.value = value


class Checker:
    """Counts blocks without their pattern on the device, one counter for each stream: no stream waits for another."""

    def __init__(self, streams: list[torch.cuda.Stream]) -> None:
        self.wrong = {stream: torch.zeros(1, dtype=torch.int64, device=DEVICE) for stream in streams}
        self.num_checks = 0

    def check(self, block: Block, stream: torch.cuda.Stream) -> None:
        """`stream` is the current one."""
        self.num_checks += 1
        self.wrong[stream] += (block.data != block.value).any()

    def num_wrong(self) -> int:
        """After all streams are done."""
        return sum(int(count) for count in self.wrong.values())


class Worker:
    """Allocates on a stream of its own; others read what it made, and some of it is freed by others."""

    def __init__(self, index: int, seed: str, streams: list[torch.cuda.Stream], exchange: queue.Queue,
                 records_streams: bool) -> None:
        self.random = random.Random(f"{seed}:{index}")
        self.index, self.stream = index, streams[index]
        self.others = [stream for stream in streams if stream is not self.stream]
        self.exchange = exchange
        self.records_streams = records_streams
        self.checker = Checker(streams)
        self.pool = torch.cuda.MemPool()
        self.counts: collections.Counter[str] = collections.Counter()
        self.error = ""

    def run(self, deadline: float) -> None:
        kept: list[Block] = []
        try:
            with torch.cuda.stream(self.stream):
                while time.monotonic() < deadline:
                    self.one_round(kept)
                for block in kept:
                    self.checker.check(block, self.stream)
        except BaseException:
            self.error = traceback.format_exc()

    def one_round(self, kept: list[Block]) -> None:
        kept.append(self.new_block())
        if self.random.random() < 0.3:
            for other in self.random.sample(self.others, min(len(self.others), self.random.randint(1, 2))):
                self.read_elsewhere(kept[-1], other)
        if self.random.random() < 0.1:
            self.hand_over(kept.pop(self.random.randrange(len(kept))))
        if self.random.random() < 0.1:
            self.take_over()
        while len(kept) > MAX_KEPT or (kept and self.random.random() < 0.3):
            block = kept.pop(self.random.randrange(len(kept)))
            self.checker.check(block, self.stream)

    def new_block(self) -> Block:
        self.counts["blocks"] += 1
        size = self.random.choice(SIZES) // 8 + self.random.randrange(64)
        value = self.counts["blocks"] * 64 + self.index
        if self.random.random() < 0.02:
            self.counts["blocks in pools"] += 1
            with torch.cuda.use_mem_pool(self.pool):
                return Block(size, value)
        return Block(size, value)

    def read_elsewhere(self, block: Block, other: torch.cuda.Stream) -> None:
        """A late look on another stream. Nothing but record_stream keeps the memory until then."""
        self.counts["reads on other streams"] += 1
        other.wait_stream(self.stream)
        with torch.cuda.stream(other):
            torch.cuda._sleep(self.random.choice((1_000, 20_000, 200_000, 2_000_000)))
            self.checker.check(block, other)
        if self.records_streams:
            block.data.record_stream(other)

    def hand_over(self, block: Block) -> None:
        """To a thread that will free it."""
        try:
            self.exchange.put_nowait((block, self.stream, self.stream.record_event()))
            self.counts["blocks handed over"] += 1
        except queue.Full:
            self.checker.check(block, self.stream)

    def take_over(self) -> None:
        try:
            block, _, ready = self.exchange.get_nowait()
        except queue.Empty:
            return
        self.stream.wait_event(ready)
        self.checker.check(block, self.stream)
        block.data.record_stream(self.stream)


class Capturer:
    """Captures small graphs and replays them, while the others go on."""

    def __init__(self, seed: str, stream: torch.cuda.Stream) -> None:
        self.random = random.Random(f"{seed}:captures")
        self.stream = stream
        self.wrong = torch.zeros(1, dtype=torch.int64, device=DEVICE)
        self.counts: collections.Counter[str] = collections.Counter()
        self.error = ""

    def run(self, deadline: float) -> None:
        try:
            with torch.cuda.stream(self.stream):
                while time.monotonic() < deadline:
                    self.one_capture()
                    time.sleep(self.random.random() * 0.1)
        except BaseException:
            self.error = traceback.format_exc()

    def one_capture(self) -> None:
        self.counts["captures"] += 1
        size = self.random.choice(SIZES[:5]) // 8
        source = torch.zeros(size, dtype=torch.int64, device=DEVICE)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self.stream, capture_error_mode="thread_local"):
            inner = source * 2
            output = inner + 1
            del inner
        for _ in range(self.random.randint(1, 6)):
            self.counts["replays"] += 1
            value = self.random.randrange(1 << 20)
            source.fill_(value)
            beside = Block(size, value)
            graph.replay()
            self.wrong += (output != 2 * value + 1).any() + (beside.data != value).any()


class Changer:
    """Swaps plans, ends steps, takes the arena away and brings it back."""

    def __init__(self, arena: Arena, seed: str, plans: list[dict[str, Any]]) -> None:
        self.engine = arena.engine
        self.random = random.Random(f"{seed}:changes")
        self.plans = plans
        self.counts: collections.Counter[str] = collections.Counter()
        self.actions = {
            "plans taken": lambda: self.engine.activate(self.plan(), self.random.randrange(3)),
            "plans armed": lambda: self.engine.arm(self.plan(), 0),
            "wrong plans refused": self.offer_a_wrong_plan,
            "steps": self.engine.end_step,
            "polls": self.engine.poll_fences,
            "trims": lambda: self.engine.trim(True),
            "switches of gaps": lambda: self.engine.set_serve_gaps(self.random.random() < 0.8),
            "deactivations": self.engine.deactivate,
            "recordings": lambda: self.engine.start_recording(1 << 14),
            "looks": self.look,
        }

    def plan(self) -> dict[str, Any]:
        return self.random.choice(self.plans)

    def offer_a_wrong_plan(self) -> None:
        """One whose slots lie on each other."""
        plan = dict(self.plan())
        plan["slot_offset"] = plan["slot_offset"] * 0
        try:
            self.engine.activate(plan, 0)
        except ValueError:
            return
        raise AssertionError("a plan whose slots overlap was taken")

    def look(self) -> None:
        torch.cuda.memory_stats()
        if self.random.random() < 0.1:
            torch.cuda.memory._snapshot()

    def run(self, deadline: float) -> None:
        names = list(self.actions)
        weights = [4 if name == "steps" else 1 for name in names]
        while time.monotonic() < deadline:
            (name,) = self.random.choices(names, weights)
            self.actions[name]()
            self.counts[name] += 1
            time.sleep(CHANGE_SECONDS)


def random_plan(arena: Arena, choice: random.Random, streams: list[torch.cuda.Stream]) -> dict[str, Any]:
    """A plan that was right for some other program, often one whose sizes followed a length."""
    steps = [choice.choices(SIZES, k=choice.randint(5, 60)) for _ in streams]
    lengths = itertools.cycle(choice.choice([(8,), (8, 6, 8, 10)]))

    def step() -> None:
        length = next(lengths)
        for stream, sizes in zip(streams, steps):
            with torch.cuda.stream(stream):
                kept = [torch.empty(size * length // 8, dtype=torch.uint8, device=DEVICE) for size in sizes]
                del kept

    return arena.record_plan(step)


def run_program(arena: Arena, seed: str, seconds: float, records_streams: bool = True) -> collections.Counter[str]:
    """One set of threads and plans. Raises AssertionError with what a thread raised.

    Without `records_streams` the threads read on other streams what nothing keeps for them, and corruption is to be found.
    """
    choice = random.Random(seed)
    engine = arena.engine
    engine.set_serve_gaps(True)
    streams = [torch.cuda.default_stream(), *(torch.cuda.Stream() for _ in range(choice.randint(1, 5)))]
    plans = [random_plan(arena, choice, streams) for _ in range(3)]
    torch.cuda.synchronize()
    before = engine.stats()
    exchange: queue.Queue = queue.Queue(maxsize=32)
    workers = [Worker(index, seed, streams, exchange, records_streams) for index in range(len(streams))]
    capturer = Capturer(seed, torch.cuda.Stream())
    changer = Changer(arena, seed, plans)
    torch.cuda.synchronize()
    deadline = time.monotonic() + seconds
    threads = [threading.Thread(target=one.run, args=(deadline,)) for one in (*workers, capturer)]
    for thread in threads:
        thread.start()
    try:
        changer.run(deadline)
    finally:
        for thread in threads:
            thread.join()
    torch.cuda.synchronize()
    while not exchange.empty():
        block, stream, _ = exchange.get()
        workers[0].checker.check(block, stream)
        torch.cuda.synchronize()
    errors = [one.error for one in (*workers, capturer) if one.error]
    assert not errors, errors[0]
    counts = sum((one.counts for one in (*workers, capturer, changer)), collections.Counter())
    counts["checks"] = sum(worker.checker.num_checks for worker in workers)
    counts["corruptions"] = sum(worker.checker.num_wrong() for worker in workers) + int(capturer.wrong)
    after = engine.stats()
    for name in ("slot_hits", "gap_hits", "bad_frees"):
        counts[name] = after[name] - before[name]
    counts["requests passed on"] = after["requests"] - before["requests"] - counts["slot_hits"] - counts["gap_hits"]
    return counts


def held_bytes(arena: Arena) -> int:
    """What is held when nothing runs any more: by the engine, and by torch as it counts."""
    for _ in range(3):
        gc.collect()
        torch.cuda.synchronize()
        arena.engine.poll_fences()
    arena.close()
    stats = arena.engine.stats()
    return stats["served_bytes"] + stats["awaiting_bytes"] + stats["extent_bytes"] + torch.cuda.memory_allocated()


def run(arena: Arena, seconds: float, seed: int) -> dict[str, Any]:
    """Programs one after another for `seconds`; what they did and what went wrong."""
    total: collections.Counter[str] = collections.Counter()
    begun = time.monotonic()
    Capturer("", torch.cuda.Stream()).one_capture()  # torch keeps something of the first one
    while (left := begun + seconds - time.monotonic()) > 0:
        before = held_bytes(arena)
        total += run_program(arena, f"{seed}:{total['programs']}", min(PROGRAM_SECONDS, left))
        total["leaked bytes"] += abs(held_bytes(arena) - before)
        total["programs"] += 1
        torch.cuda.empty_cache()
    findings = {name: total[name] for name in ("corruptions", "leaked bytes", "bad_frees")}
    return {"seed": seed, "seconds": round(time.monotonic() - begun, 1), **findings, **dict(sorted(total.items()))}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--debug", action="store_true", help="with the engine's debug mode, which ends the process at a finding")
    args = parser.parse_args()

    from stalloc_accel import extension

    module = extension.load("cuda")
    module.install()
    torch.cuda.init()
    seed = random.SystemRandom().randrange(1 << 31) if args.seed is None else args.seed
    print(f"seed {seed}", flush=True)
    module.engine(0).set_debug(args.debug)
    found = run(Arena(module, module.engine(0)), args.seconds, seed)
    text = json.dumps(found, indent=1)
    print(text)
    if args.json:
        args.json.write_text(text)
    return 1 if found["corruptions"] or found["leaked bytes"] or found["bad_frees"] else 0


if __name__ == "__main__":
    sys.exit(main())
