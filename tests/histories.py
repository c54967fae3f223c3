"""Histories made by hand, and the snapshots that torch versions would write of them."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np

from stalloc_accel import _core
from stalloc_accel.snapshot import (ALLOC, FREE_COMPLETED, FREE_REQUESTED, SEGMENT_ALLOC, SEGMENT_FREE)

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
SHARED = Path(__file__).parents[2] / "shared"
DATA = Path(__file__).parent / "data"
FRAMES = [{"filename": "/home/me/torch/nn/modules/linear.py", "line": 5, "name": "forward"},
          {"filename": "train.py", "line": 12, "name": "step"}]


class History:
    """A program's allocations and frees, written down one by one."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, int, int, int]] = []
        self.sizes: dict[int, tuple[int, int]] = {}
        self._next = 0x7F00_0000_0000

    def allocate(self, size: int, stream: int = 0) -> int:
        address = self._next
        self._next += -(-size // 512) * 512
        self.rows.append((ALLOC, address, size, stream))
        self.sizes[address] = (size, stream)
        return address

    def request_free(self, address: int) -> None:
        self.rows.append((FREE_REQUESTED, address, *self.sizes[address]))

    def complete_free(self, address: int) -> None:
        self.rows.append((FREE_COMPLETED, address, *self.sizes[address]))

    def free(self, *addresses: int) -> None:
        for address in addresses:
            self.request_free(address)
            self.complete_free(address)

    def empty_cache(self) -> None:
        self.rows.append((SEGMENT_FREE, 0, 0, 0))

    def take_segment(self, address: int, size: int, stream: int = 0) -> None:
        self.rows.append((SEGMENT_ALLOC, address, size, stream))

    def core(self, marks: tuple[int, ...] = ()) -> Any:
        action, address, size, stream = zip(*self.rows)
        return _core.ReplayTrace(np.array(action, np.uint8), np.array(address, np.uint64), np.array(size, np.int64),
                                 np.array(stream, np.uint64), np.array(marks, np.int64))

    def events(self, **changes: Any) -> list[dict[str, Any]]:
        """As in a snapshot. `changes`: time_us or frames for each event, or None to leave the key out."""
        names = ("alloc", "free_requested", "free_completed", "segment_alloc", "segment_free")
        extra = {"time_us": 1, "frames": FRAMES, **changes}
        return [{"action": names[action], "addr": address, "size": size, "stream": stream,
                 **{name: value for name, value in extra.items() if value is not None}}
                for action, address, size, stream in self.rows]


def training(num_steps: int = 5, num_layers: int = 6, sizes: tuple[int, ...] = (4 * MIB, 3 * MIB + 512, 700 * KIB)) -> tuple[History, list[int]]:
    """Parameters, then steps of a forward and a backward pass; and where the steps begin."""
    history, marks = History(), []
    for layer in range(num_layers):
        history.allocate(8 * MIB + 512 * layer)
    for _ in range(num_steps):
        marks.append(len(history.rows))
        activations = []
        for layer in range(num_layers):
            activations += [history.allocate(size + 4096 * layer) for size in sizes]
            history.free(history.allocate(2 * MIB + 1024 * layer))
        for address in reversed(activations):
            gradient = history.allocate(history.sizes[address][0] + 512)
            history.free(address, gradient)
    marks.append(len(history.rows))
    return history, marks


def snapshot_of(events: list[dict[str, Any]] | None, segments: list[dict[str, Any]] = (), **more: Any) -> dict[str, Any]:
    content: dict[str, Any] = {"segments": list(segments), **more}
    if events is not None:
        content["device_traces"] = [events]
    return content


def segment(address: int, size: int, blocks: list[tuple[int, str]], **changes: Any) -> dict[str, Any]:
    """`blocks`: (size, state) one after the other. A change to None leaves the key out."""
    listed, at = [], address
    for length, state in blocks:
        listed.append({"address": at, "size": length, "requested_size": length, "state": state, "frames": FRAMES})
        at += length
    content = {"device": 0, "address": address, "total_size": size, "allocated_size": 0, "active_size": 0, "stream": 0,
               "segment_type": "large", "segment_pool_id": (0, 0), "is_expandable": False, "blocks": listed, **changes}
    return {name: value for name, value in content.items() if value is not None}


def write(path: Path, content: Any, protocol: int = 4) -> Path:
    path.write_bytes(pickle.dumps(content, protocol=protocol))
    return path
