"""What the allocator had taken from the device, at each moment of a history."""

from __future__ import annotations

import dataclasses

import numpy as np

from stalloc_accel.snapshot import SEGMENT_ALLOC, SEGMENT_MAP, SEGMENT_UNMAP, Device
from stalloc_accel.trace import RecordedTrace


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ranges:
    """Disjoint ranges of reserved addresses, in their order."""

    address: np.ndarray
    size: np.ndarray
    stream: np.ndarray
    pool: list[str]
    is_expandable: np.ndarray

    def index_of(self, address: np.ndarray) -> np.ndarray:
        """The range that holds each address, -1 where none does."""
        if len(self.address) == 0:
            return np.full(len(address), -1)
        at = np.searchsorted(self.address, address, "right") - 1
        held = (at >= 0) & (address - self.address[at] < self.size[at].astype(np.uint64))
        return np.where(held, at, -1)


_Range = tuple[int, int, str, bool]  # size, stream, pool, is_expandable


class ReservedMemory:
    """Follows segments backwards from the snapshot's state, else forwards from the first event."""

    def __init__(self, device: Device, trace: RecordedTrace) -> None:
        history = trace.history
        self._moves = np.flatnonzero((history.action >= SEGMENT_ALLOC) & (history.action <= SEGMENT_UNMAP))
        self._action = history.action[self._moves].tolist()
        self._address = history.address[self._moves].tolist()
        self._size = history.size[self._moves].tolist()
        self._stream = history.stream[self._moves].tolist()
        self._num_events = len(history)
        segments = device.segments
        self._final: dict[int, _Range] | None = None
        if len(segments.address):
            self._final = {address: (size, stream, pool, expandable) for address, size, stream, pool, expandable in zip(
                segments.address.tolist(), segments.size.tolist(), segments.stream.tolist(), segments.pool,
                segments.is_expandable.tolist())}

    @property
    def is_known(self) -> bool:
        return self._final is not None or len(self._moves) > 0

    def over_time(self) -> np.ndarray:
        """Bytes after each event."""
        change = np.zeros(self._num_events, np.int64)
        sign = np.array([1 if action in (SEGMENT_ALLOC, SEGMENT_MAP) else -1 for action in self._action], np.int64)
        change[self._moves] = sign * np.array(self._size, np.int64)
        running = np.cumsum(change)
        if self._final is not None and len(running):
            running += sum(size for size, *_ in self._final.values()) - running[-1]
        return np.maximum(running, 0)

    def ranges_at(self, event: int) -> Ranges:
        """After event `event`."""
        ranges = dict(self._final or {})
        count = int(np.searchsorted(self._moves, event, "right"))
        if self._final is not None:
            for i in range(len(self._moves) - 1, count - 1, -1):
                self._apply(ranges, i, undo=True)
        else:
            for i in range(count):
                self._apply(ranges, i, undo=False)
        addresses = sorted(ranges)
        return Ranges(address=np.array(addresses, np.uint64),
                      size=np.array([ranges[address][0] for address in addresses], np.int64),
                      stream=np.array([ranges[address][1] for address in addresses], np.uint64),
                      pool=[ranges[address][2] for address in addresses],
                      is_expandable=np.array([ranges[address][3] for address in addresses], bool))

    def _apply(self, ranges: dict[int, _Range], i: int, undo: bool) -> None:
        action, address, size = self._action[i], self._address[i], self._size[i]
        adds = (action in (SEGMENT_ALLOC, SEGMENT_MAP)) != undo
        if adds:
            ranges[address] = (size, self._stream[i], "0.0", action in (SEGMENT_MAP, SEGMENT_UNMAP))
        elif action in (SEGMENT_MAP, SEGMENT_UNMAP) or ranges.pop(address, None) is None:
            self._cut_out(ranges, address, size)

    @staticmethod
    def _cut_out(ranges: dict[int, _Range], begin: int, size: int) -> None:
        """Mapped pages come and go in other pieces than they are listed in."""
        end = begin + size
        for address in [address for address, (length, *_) in ranges.items() if address < end and begin < address + length]:
            length, stream, pool, expandable = ranges.pop(address)
            if address < begin:
                ranges[address] = (begin - address, stream, pool, expandable)
            if address + length > end:
                ranges[end] = (address + length - end, stream, pool, expandable)
