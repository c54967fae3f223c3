"""Allocation programs for tests: steps of requests and frees, run against an engine or written down as a trace."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Request:
    name: str
    size: int
    stream: int = 0


@dataclass(frozen=True)
class Free:
    name: str


def training_step(seed: int, num_layers: int = 12, num_streams: int = 1) -> list:
    """One update: activations stacked up and freed in reverse, gradients that live into the next step, scratch."""
    draw = random.Random(seed)
    sizes = [draw.choice((512, 4096, 70_000, 1 << 20, 3 << 20)) for _ in range(num_layers)]
    step: list = []
    for layer, size in enumerate(sizes):
        stream = draw.randrange(num_streams)
        step += [Request(f"scratch{layer}", 2 * size, stream), Request(f"act{layer}", size, stream),
                 Free(f"scratch{layer}")]
    for layer in reversed(range(num_layers)):
        if layer < num_layers // 4:
            step.append(Free(f"grad{layer}"))  # of the step before, where there is one
        step += [Request(f"grad{layer}", sizes[layer], 0), Free(f"act{layer}")]
    step += [Free(f"grad{layer}") for layer in reversed(range(num_layers // 4, num_layers))]
    return step


def construction(num_layers: int = 12) -> list:
    return [part for layer in range(num_layers)
            for part in (Request(f"weight{layer}", 1 << 20), Request(f"init{layer}", 1 << 19), Free(f"init{layer}"))]


class Runner:
    """Runs programs on a HostEngine and keeps every live block's span, so that an overlap is noticed."""

    def __init__(self, host):
        self.host = host
        self.live: dict[str, tuple[int, int]] = {}

    def run(self, program: list) -> None:
        for part in program:
            if isinstance(part, Free):
                if part.name in self.live:
                    self.host.free(self.live.pop(part.name)[0])
                continue
            address = self.host.allocate(part.size, part.stream)
            end = address + part.size
            for name, (start, stop) in self.live.items():
                assert end <= start or stop <= address, f"{part.name} overlaps {name}"
            assert part.name not in self.live, part.name
            self.live[part.name] = (address, end)

    def free_all(self) -> None:
        for address, _ in self.live.values():
            self.host.free(address)
        self.live.clear()


def served_share(host, before: dict) -> float:
    """Of the requests since `before` (engine.stats()), the share served from slots."""
    now = host.engine.stats()
    requests = now["requests"] - before["requests"]
    return (now["slot_hits"] - before["slot_hits"]) / requests if requests else 0.0


def peak_live_bytes(trace: dict) -> int:
    """The most bytes live at once in a recorded trace, rounded as a plan rounds them; what no plan can undercut."""
    live, now, peak = {}, 0, 0
    for address, size in zip(trace["event_address"].tolist(), trace["event_size"].tolist(), strict=True):
        if size > 0:
            live[address] = -(-size // 512) * 512
            now += live[address]
            peak = max(peak, now)
        elif size == 0:
            now -= live.pop(address, 0)
    return peak


def empty_trace() -> dict:
    return {"event_address": np.zeros(0, np.uint64), "event_size": np.zeros(0, np.int64),
            "event_role": np.zeros(0, np.int32), "step_begin": np.zeros(1, np.int64), "num_roles": 1}


def allocate_from_threads(host, sizes: tuple[int, ...], num_streams: int, meanwhile: Callable[[], None], times: int) -> None:
    """Four threads allocate and free at random and free all in the end, while this one calls `meanwhile` so many times."""
    def work(seed: int) -> None:
        draw = random.Random(seed)
        live = []
        for _ in range(3000):
            if live and draw.random() < 0.5:
                host.free(live.pop(draw.randrange(len(live))))
            else:
                live.append(host.allocate(draw.choice(sizes), draw.randrange(num_streams)))
        for address in live:
            host.free(address)

    with ThreadPoolExecutor(4) as pool:
        threads = [pool.submit(work, seed) for seed in range(4)]
        for _ in range(times):
            meanwhile()
        for thread in threads:
            thread.result()
