"""Reads torch memory snapshots of any version from 2.1 on, and trusts nothing in them."""

from __future__ import annotations

import dataclasses
import gzip
import os
import zlib
from pathlib import Path
from typing import BinaryIO

import numpy as np

from stalloc_accel import _core
from stalloc_accel.errors import StallocError, describe

ALLOC, FREE_REQUESTED, FREE_COMPLETED, SEGMENT_ALLOC, SEGMENT_FREE, SEGMENT_MAP, SEGMENT_UNMAP, OOM, MARK = range(9)
"""Codes of an event's action; larger ones move no memory."""

FREE, ALLOCATED, AWAITING_STREAMS = range(3)
"""States of a block."""

MAX_BYTES = 4 << 30
"""Of a pickle, unpacked. Larger recordings are of no use to a person."""

_MAX_GZIP_RATIO = 400  # real ones reach 40; zeros reach 1,030


class SnapshotError(StallocError):
    """A file that is no snapshot, or none that can be trusted."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Segments:
    """Memory that the allocator had taken when the snapshot was made. One entry a segment."""

    address: np.ndarray
    size: np.ndarray
    stream: np.ndarray
    is_small: np.ndarray
    is_expandable: np.ndarray
    pool: list[str]  # "0.0": the default pool


@dataclasses.dataclass(frozen=True, kw_only=True)
class Blocks:
    """The blocks of the segments, in the order of the file."""

    segment: np.ndarray  # index into Segments
    address: np.ndarray
    size: np.ndarray
    requested: np.ndarray
    state: np.ndarray
    stack: np.ndarray  # index into Snapshot.stacks, -1: none

    def only(self, mask: np.ndarray) -> Blocks:
        return Blocks(**{field.name: getattr(self, field.name)[mask] for field in dataclasses.fields(self)})


@dataclasses.dataclass(frozen=True, kw_only=True)
class History:
    """The events of one device, oldest first. One entry an event."""

    action: np.ndarray
    address: np.ndarray
    size: np.ndarray  # bytes, as requested
    stream: np.ndarray
    time_us: np.ndarray  # -1: not recorded
    stack: np.ndarray  # index into Snapshot.stacks, -1: none

    def __len__(self) -> int:
        return len(self.action)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Device:
    index: int
    history: History
    segments: Segments
    blocks: Blocks

    @property
    def is_empty(self) -> bool:
        return len(self.history) == 0 and len(self.segments.address) == 0


def empty_device(history: History) -> Device:
    """A device of which nothing but the history is known."""
    none = np.zeros(0, np.int64)
    return Device(index=0, history=history,
                  segments=Segments(address=none.astype(np.uint64), size=none, stream=none.astype(np.uint64),
                                    is_small=none.astype(bool), is_expandable=none.astype(bool), pool=[]),
                  blocks=Blocks(segment=none, address=none.astype(np.uint64), size=none, requested=none, state=none, stack=none))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Snapshot:
    devices: list[Device]  # those that did anything
    frames: list[tuple[str, int, str]]  # file, line, function
    stack_begin: np.ndarray
    stack_frames: np.ndarray

    def stack(self, index: int) -> list[tuple[str, int, str]]:
        """The frames of a stack, innermost first."""
        if index < 0:
            return []
        first, last = self.stack_begin[index], self.stack_begin[index + 1]
        return [self.frames[frame] for frame in self.stack_frames[first:last]]


def read_snapshot(path: str | os.PathLike[str]) -> Snapshot:
    """Reads a pickle, gzipped or not. Raises SnapshotError, or OSError where the file cannot be read."""
    path = Path(path)
    try:
        with path.open("rb") as file:
            columns = _core.read_snapshot(_reader(file, path.stat().st_size))
    except ValueError as error:
        raise SnapshotError(str(error)) from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise SnapshotError(describe("reading a snapshot", "file", path.name, f"its compression is damaged ({error})",
                                     "Copy it anew.")) from None
    return _snapshot(columns)


def _reader(file: BinaryIO, file_bytes: int):
    """A function that gives the pickle's bytes, so many at a time, and stops a file that unpacks without end."""
    is_packed = file.read(2) == b"\x1f\x8b"
    file.seek(0)
    source = gzip.GzipFile(fileobj=file) if is_packed else file
    most = min(MAX_BYTES, max(64 << 20, file_bytes * _MAX_GZIP_RATIO)) if is_packed else MAX_BYTES
    total = 0

    def read(num_bytes: int) -> bytes:
        nonlocal total
        data = source.read(num_bytes)
        total += len(data)
        if total > most:
            raise SnapshotError(describe("reading a snapshot", "bytes", total, f"more than {most} are not read",
                                         "Record with a smaller max_entries."))
        return data

    return read


def _snapshot(columns: dict) -> Snapshot:
    count = max([len(columns["devices"]), *(int(index) + 1 for index in columns["segment_device"])])
    devices = [_device(columns, index) for index in range(count)]
    return Snapshot(devices=[device for device in devices if not device.is_empty], frames=columns["frames"],
                    stack_begin=columns["stack_begin"], stack_frames=columns["stack_frames"])


def _device(columns: dict, index: int) -> Device:
    events = columns["devices"][index] if index < len(columns["devices"]) else _no_events()
    mine = columns["segment_device"] == index
    new_index = np.cumsum(mine) - 1
    segments = Segments(address=columns["segment_address"][mine], size=columns["segment_size"][mine],
                        stream=columns["segment_stream"][mine], is_small=columns["segment_is_small"][mine] != 0,
                        is_expandable=columns["segment_is_expandable"][mine] != 0,
                        pool=[pool for pool, is_mine in zip(columns["segment_pool"], mine) if is_mine])
    owner = columns["block_segment"]
    mask = mine[owner] if len(owner) else np.zeros(0, bool)
    blocks = Blocks(segment=new_index[owner[mask]], address=columns["block_address"][mask],
                    size=columns["block_size"][mask], requested=columns["block_requested"][mask],
                    state=columns["block_state"][mask], stack=columns["block_stack"][mask])
    return Device(index=index, history=History(**events), segments=segments, blocks=blocks)


def _no_events() -> dict[str, np.ndarray]:
    return {"action": np.zeros(0, np.uint8), "address": np.zeros(0, np.uint64), "size": np.zeros(0, np.int64),
            "stream": np.zeros(0, np.uint64), "time_us": np.zeros(0, np.int64), "stack": np.zeros(0, np.int32)}
