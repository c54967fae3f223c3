"""What the session must know of a device's memory, and the little it does to it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Protocol


@dataclasses.dataclass(frozen=True, kw_only=True)
class Peaks:
    """Bytes, as the allocator counts them; None where the backend has no such figure (the CPU reserves nothing)."""

    allocated_bytes: int | None
    reserved_bytes: int | None

    @property
    def efficiency(self) -> float | None:
        """Allocated peak / reserved peak, in [0, 1]."""
        if not self.reserved_bytes or self.allocated_bytes is None:
            return None
        return self.allocated_bytes / self.reserved_bytes

    def max(self, other: Peaks) -> Peaks:
        return Peaks(allocated_bytes=_larger(self.allocated_bytes, other.allocated_bytes),
                     reserved_bytes=_larger(self.reserved_bytes, other.reserved_bytes))


class DeviceMemory(Protocol):
    """One device of one backend."""

    backend: str
    device_index: int

    def peaks(self) -> Peaks:
        """Since the process began, or since the program reset its peaks."""

    def start_window(self) -> None:
        """Peaks of the window count from here on. The program's own peaks are left alone."""

    def sample_window(self) -> None:
        """To be called at every step boundary of the window."""

    def window_peaks(self) -> Peaks: ...

    def reserved_bytes(self) -> int | None: ...

    def pinned_bytes(self, transient: frozenset[int] = frozenset()) -> int | None:
        """Bytes of the segments that would survive an empty_cache, because something lives in them.

        `transient`: addresses of blocks that are about to be freed and do not count.
        """

    def total_bytes(self) -> int | None: ...

    def available_bytes(self) -> int | None:
        """The most that torch may hold now, with what it holds; None where nothing is ever reserved."""

    def has_expandable_segments(self) -> bool:
        """Whether any are held: asking for them does nothing where they would break something."""

    def empty_cache(self) -> None: ...

    def use_expandable_segments(self, value: bool) -> None:
        """On: memory is taken for expandable segments, where that breaks nothing. Off: as the program had it."""


class CpuMemory:
    """Host memory: nothing is reserved, so there is nothing to compare and nothing to empty."""

    backend = "cpu"
    device_index = 0

    def __init__(self, engine: Any) -> None:
        self._engine = engine

    def peaks(self) -> Peaks:
        return Peaks(allocated_bytes=self._engine.stats()["served_peak_bytes"], reserved_bytes=None)

    def start_window(self) -> None:
        pass  # nothing is served before it

    def sample_window(self) -> None:
        pass

    def window_peaks(self) -> Peaks:
        return self.peaks()

    def reserved_bytes(self) -> None:
        return None

    def pinned_bytes(self, transient: frozenset[int] = frozenset()) -> None:
        return None

    def total_bytes(self) -> None:
        return None

    def available_bytes(self) -> None:
        return None

    def has_expandable_segments(self) -> bool:
        return False

    def empty_cache(self) -> None:
        pass

    def use_expandable_segments(self, value: bool) -> None:
        pass


class CudaMemory:
    """A CUDA device, read through torch's own statistics, which count served blocks as allocated."""

    backend = "cuda"

    def __init__(self, device_index: int, module: Any) -> None:
        """`module`: the extension, stalloc_accel._torch_cuda."""
        import torch
        self.device_index = device_index
        self._cuda = torch.cuda
        self._module = module
        self._engine = module.engine(device_index)
        self._start = Peaks(allocated_bytes=0, reserved_bytes=0)
        self._window = self._start

    def peaks(self) -> Peaks:
        if not self._cuda.is_initialized():
            return Peaks(allocated_bytes=0, reserved_bytes=0)
        return Peaks(allocated_bytes=self._cuda.max_memory_allocated(self.device_index),
                     reserved_bytes=self._cuda.max_memory_reserved(self.device_index))

    def start_window(self) -> None:
        self._start = self.peaks()
        self._window = Peaks(allocated_bytes=0, reserved_bytes=0)
        self._engine.reset_peaks()

    def sample_window(self) -> None:
        """Reserved memory only grows within a step, so that its level at the boundary is the step's peak.

        Where the window has not passed the peak from before it, the peak is that of the served bytes, which the engine
        keeps, and what torch's allocator holds for the program at the boundary.
        """
        if not self._cuda.is_initialized():
            return
        peaks, stats = self.peaks(), self._engine.stats()
        native = self._cuda.memory_allocated(self.device_index) - stats["served_bytes"]
        allocated = peaks.allocated_bytes
        if allocated <= self._start.allocated_bytes:
            allocated = min(allocated, native + stats["served_peak_bytes"])
        self._window = self._window.max(Peaks(allocated_bytes=allocated, reserved_bytes=self.reserved_bytes()))

    def window_peaks(self) -> Peaks:
        self.sample_window()
        return self._window

    def reserved_bytes(self) -> int:
        return self._cuda.memory_reserved(self.device_index)

    def pinned_bytes(self, transient: frozenset[int] = frozenset()) -> int:
        return sum(_pinned_bytes(segment, transient) for segment in self._segments())

    def total_bytes(self) -> int:
        return self._cuda.get_device_properties(self.device_index).total_memory

    def available_bytes(self) -> int:
        free, total = self._cuda.mem_get_info(self.device_index)
        get_fraction = getattr(self._cuda, "get_per_process_memory_fraction", lambda device: 1.0)
        return min(free + self.reserved_bytes(), int(get_fraction(self.device_index) * total))

    def has_expandable_segments(self) -> bool:
        return self._cuda.is_initialized() and any(segment.get("is_expandable") for segment in self._segments())

    def empty_cache(self) -> None:
        self._cuda.empty_cache()

    def use_expandable_segments(self, value: bool) -> None:
        if value:
            self._module.turn_expandable_segments_on()
        else:
            self._module.turn_expandable_segments_off()

    def _segments(self) -> list[dict[str, Any]]:
        return [segment for segment in self._cuda.memory_snapshot() if segment["device"] == self.device_index]


_PAGE_BYTES = {"small": 2 << 20, "large": 20 << 20}  # of an expandable segment; mapped and unmapped as a whole


def _pinned_bytes(segment: Mapping[str, Any], transient: frozenset[int]) -> int:
    """What an empty_cache would leave of a segment of torch.cuda.memory_snapshot(): all, nothing, or some pages."""
    live = [block for block in segment["blocks"]
            if block["state"] == "active_allocated" and block["address"] not in transient]
    if not segment.get("is_expandable"):
        return segment["total_size"] if live else 0
    page = _PAGE_BYTES[segment["segment_type"]]
    num_pages, seen = 0, 0  # pages up to `seen` are counted; the blocks come by address
    for block in live:
        begin = block["address"] - segment["address"]
        end = -(-(begin + block["size"]) // page)
        num_pages += max(end - max(begin // page, seen), 0)
        seen = max(end, seen)
    return min(num_pages * page, segment["total_size"])


def _larger(a: int | None, b: int | None) -> int | None:
    return b if a is None else a if b is None else max(a, b)
