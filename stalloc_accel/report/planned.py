"""What a plan would have reserved for a history."""

from __future__ import annotations

import dataclasses

import numpy as np

from stalloc_accel import _core
from stalloc_accel.report.lifetimes import Lifetimes

MAX_PLANNED = 150_000  # allocations; of longer histories the part around the peak is planned
_DEADLINE_S = 2.0  # for all streams
_MAX_STREAMS = 64


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlannedMemory:
    lower_bound_bytes: int  # most bytes in use at once, stream by stream: a range stays with its stream
    shared_bound_bytes: int  # if all streams could share, and blocks came back at once
    reserved_bytes: int
    blocks: np.ndarray  # indices into the lifetimes, of what was planned
    offset: np.ndarray  # of these, in an address space in which one stream's arena follows the other's
    seconds: float

    delayed_bytes: int  # of the lower bound, because recorded streams give blocks back late

    @property
    def streams_apart_bytes(self) -> int:
        """What it costs a plan that streams do not share."""
        return self.lower_bound_bytes - self.delayed_bytes - self.shared_bound_bytes


def plan_for(lives: Lifetimes, peak_event: int) -> PlannedMemory:
    chosen = _around(lives, peak_event)
    stream_of = _few_streams(lives)
    streams = np.unique(stream_of)
    offset = np.zeros(len(chosen), np.int64)
    bound = prompt_bound = reserved = 0
    seconds = 0.0
    for stream in streams:
        of_stream = stream_of == stream
        bound += lives.peak_bytes(of_stream)
        prompt_bound += lives.peak_bytes(of_stream, until_done=False)
        mine = np.flatnonzero(of_stream[chosen])
        if len(mine) == 0:
            continue
        blocks = chosen[mine]
        placed = _core.place(lives.born_tick[blocks], lives.end_tick[blocks], lives.size[blocks], alignment=512,
                             deadline_s=_DEADLINE_S / len(streams))
        offset[mine] = placed["offsets"] + reserved
        # Where only a part was planned, the rest lies below the peak and fits beside it.
        reserved += max(placed["peak_bytes"], lives.peak_bytes(of_stream))
        seconds += placed["elapsed_s"]
    return PlannedMemory(lower_bound_bytes=bound, shared_bound_bytes=lives.peak_bytes(until_done=False),
                         delayed_bytes=bound - prompt_bound, reserved_bytes=reserved, blocks=chosen, offset=offset,
                         seconds=seconds)


def _few_streams(lives: Lifetimes) -> np.ndarray:
    """The number of each block's stream, the busiest first. A program has a handful; beyond that they count as one."""
    _, index, counts = np.unique(lives.stream, return_inverse=True, return_counts=True)
    rank = np.empty(len(counts), np.int64)
    rank[np.argsort(-counts, kind="stable")] = np.arange(len(counts))
    return np.minimum(rank, _MAX_STREAMS - 1)[index]


def _around(lives: Lifetimes, event: int) -> np.ndarray:
    """Blocks alive in a window about `event`, as many as can be planned at once."""
    if len(lives) <= MAX_PLANNED:
        return np.arange(len(lives))
    first = max(0, int(np.searchsorted(lives.born, event)) - MAX_PLANNED // 2)
    last = min(len(lives), first + MAX_PLANNED)
    reaches_in = lives.done > lives.born[first]
    return np.flatnonzero(reaches_in & (np.arange(len(lives)) < last))
