"""Who lived when: the blocks of a history as columns."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from stalloc_accel.snapshot import ALLOC
from stalloc_accel.trace import RecordedTrace

_ALIGNMENT = 512  # what torch rounds requests to


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lifetimes:
    """One entry an allocation, in the order of the history. Moments are event indices, ticks count allocations."""

    num_events: int
    born: np.ndarray
    freed: np.ndarray  # asked back; num_events: never
    done: np.ndarray  # and no stream uses it any more
    size: np.ndarray  # rounded up to 512 bytes
    requested: np.ndarray
    address: np.ndarray
    stream: np.ndarray
    stack: np.ndarray
    is_rebuilt: np.ndarray  # alive before the recording began
    born_tick: np.ndarray
    end_tick: np.ndarray  # of `done`; > born_tick

    def __len__(self) -> int:
        return len(self.born)

    def alive_at(self, event: int) -> np.ndarray:
        """Mask of the blocks in use after event `event`, and not asked back yet."""
        return (self.born <= event) & (self.freed > event)

    def awaiting_at(self, event: int) -> np.ndarray:
        """Mask of the blocks asked back, which a recorded stream still holds."""
        return (self.freed <= event) & (self.done > event)

    def allocated_over_time(self) -> np.ndarray:
        """Bytes in use after each event."""
        return self._running(self.born, self.freed, np.ones(len(self), bool))

    def peak_bytes(self, mask: np.ndarray | None = None, until_done: bool = True) -> int:
        """Most bytes held at once by the chosen blocks, until their streams are done: no placement needs less."""
        mask = np.ones(len(self), bool) if mask is None else mask
        return int(self._running(self.born, self.done if until_done else self.freed, mask).max(initial=0))

    def _running(self, begin: np.ndarray, end: np.ndarray, mask: np.ndarray) -> np.ndarray:
        change = np.zeros(self.num_events + 1, np.int64)
        np.add.at(change, begin[mask], self.size[mask])
        np.subtract.at(change, end[mask], self.size[mask])
        return np.cumsum(change)[:-1]


def lifetimes_of(trace: RecordedTrace, core: Any) -> Lifetimes:
    """`core`: the trace's _core.ReplayTrace."""
    history, lives = trace.history, core.lives()
    born = lives["born"]
    requested = history.size[born]
    is_allocation = history.action == ALLOC
    ticks = np.concatenate([[0], np.cumsum(is_allocation)])
    return Lifetimes(num_events=len(history), born=born, freed=lives["freed"], done=lives["done"],
                     size=np.maximum((requested + _ALIGNMENT - 1) // _ALIGNMENT, 1) * _ALIGNMENT, requested=requested,
                     address=history.address[born], stream=history.stream[born], stack=history.stack[born],
                     is_rebuilt=born < trace.num_rebuilt, born_tick=ticks[born], end_tick=ticks[lives["done"]])

