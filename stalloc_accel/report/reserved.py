"""What the allocator had taken from the device, at each moment of a history."""

from __future__ import annotations

import bisect
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


_MAX_MOVES = 200_000  # a real history has thousands
_Range = tuple[int, int, str, bool]  # size, stream, pool, is_expandable


class ReservedMemory:
    """Follows segments backwards from the snapshot's state, else forwards from the first event."""

    def __init__(self, device: Device, trace: RecordedTrace) -> None:
        history = trace.history
        self._moves = np.flatnonzero((history.action >= SEGMENT_ALLOC) & (history.action <= SEGMENT_UNMAP))
        self._action, self._address, self._size, self._stream = history.action, history.address, history.size, history.stream
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
        action = self._action[self._moves]
        sign = np.where((action == SEGMENT_ALLOC) | (action == SEGMENT_MAP), 1, -1)
        change[self._moves] = sign * self._size[self._moves]
        running = np.cumsum(change)
        if self._final is not None and len(running):
            running += sum(size for size, *_ in self._final.values()) - running[-1]
        return np.maximum(running, 0)

    def ranges_at(self, event: int) -> Ranges | None:
        """After event `event`. None where there are too many moves to follow them one by one."""
        if len(self._moves) > _MAX_MOVES:
            return None
        ranges = _RangeSet(self._final or {})
        count = int(np.searchsorted(self._moves, event, "right"))
        if self._final is not None:
            for i in range(len(self._moves) - 1, count - 1, -1):
                self._apply(ranges, i, undo=True)
        else:
            for i in range(count):
                self._apply(ranges, i, undo=False)
        listed = [(address, *ranges.by_address[address]) for address in ranges.addresses]
        return Ranges(address=np.array([one[0] for one in listed], np.uint64),
                      size=np.array([one[1] for one in listed], np.int64),
                      stream=np.array([one[2] for one in listed], np.uint64),
                      pool=[one[3] for one in listed],
                      is_expandable=np.array([one[4] for one in listed], bool))

    def _apply(self, ranges: _RangeSet, i: int, undo: bool) -> None:
        at = self._moves[i]
        action, address, size = int(self._action[at]), int(self._address[at]), int(self._size[at])
        is_page = action in (SEGMENT_MAP, SEGMENT_UNMAP)
        if (action in (SEGMENT_ALLOC, SEGMENT_MAP)) != undo:
            ranges.add(address, (size, int(self._stream[at]), "0.0", is_page))
        elif is_page or not ranges.remove(address):
            ranges.cut_out(address, size)


class _RangeSet:
    """Ranges by address, which mostly do not overlap."""

    def __init__(self, by_address: dict[int, _Range]) -> None:
        self.by_address = dict(by_address)
        self.addresses = sorted(by_address)

    def add(self, address: int, given: _Range) -> None:
        if address not in self.by_address:
            bisect.insort(self.addresses, address)
        self.by_address[address] = given

    def remove(self, address: int) -> bool:
        """The range that begins there, whatever its size. False where none does."""
        if self.by_address.pop(address, None) is None:
            return False
        del self.addresses[bisect.bisect_left(self.addresses, address)]
        return True

    def cut_out(self, begin: int, size: int) -> None:
        """Mapped pages come and go in other pieces than they are listed in."""
        end = begin + size
        first = max(bisect.bisect_right(self.addresses, begin) - 1, 0)
        last = bisect.bisect_left(self.addresses, end)
        for address in self.addresses[first:last]:
            length, stream, pool, expandable = self.by_address[address]
            if address + length <= begin:
                continue
            self.remove(address)
            if address < begin:
                self.add(address, (begin - address, stream, pool, expandable))
            if address + length > end:
                self.add(end, (address + length - end, stream, pool, expandable))
