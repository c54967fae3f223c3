"""An engine's arena that a test fills as it likes."""

from __future__ import annotations

import gc
from collections.abc import Callable

import numpy as np
import torch

from stalloc_accel import _core

CAPACITY_EVENTS = 1 << 20
_ROOM = 4  # SlotKind::kRoom of csrc/core/plan.h


def add_room(plan: dict, size_bytes: int) -> None:
    """Room for requests that nothing foretells, during the whole step, in the space of the plan's first slot."""
    role = int(plan["slot_role"][0])
    space = int(plan["role_space"][role])
    values = {"size": size_bytes, "offset": plan["arena_bytes"][space], "birth": plan["window_begin"], "death": plan["window_end"],
              "role": role, "kind": _ROOM, "base": size_bytes, "slope": 0, "variable": -1, "defines": 0}
    for name, value in values.items():
        column = plan[f"slot_{name}"]
        plan[f"slot_{name}"] = np.append(column, np.array([value], column.dtype))
    plan["arena_bytes"][space] += size_bytes


class Arena:
    """The engine of device 0 with an arena that a test can fill as it likes."""

    def __init__(self, module, engine, device: str = "cuda") -> None:
        self.module = module
        self.device = device
        self._bad_frees_before = engine.stats()["bad_frees"]
        self.engine = engine  # serves nothing until a test opens the arena: an earlier one may have left an extent in use

    def record_plan(self, step: Callable[[], object], num_steps: int = 3, *, warm_up: bool = True) -> dict:
        if warm_up:
            step()
            self.engine.end_step()
        self.engine.start_recording(CAPACITY_EVENTS)
        for _ in range(num_steps):
            step()
            self.engine.end_step()
        plan = _core.build_plan(self.engine.recorded(), False)
        self.engine.stop_recording()
        return plan

    def serve(self, step: Callable[[], object]) -> dict:
        """Serves from now on what `step` allocates in one step, from its plan."""
        plan = self.record_plan(step)
        self.engine.set_serve_gaps(True)
        assert self.engine.activate(plan, 0)
        return plan

    def open(self, size_bytes: int) -> None:
        """Serves from now on whatever fits, on the current stream, in `size_bytes` of free space.

        The plan has one small slot, and room for requests that nothing foretells.
        """
        plan = self.record_plan(lambda: torch.empty(512, dtype=torch.uint8, device=self.device))
        add_room(plan, size_bytes)
        before = self.engine.stats()["extent_bytes"]
        self.engine.set_serve_gaps(True)
        assert self.engine.activate(plan, 0)
        assert self.engine.stats()["extent_bytes"] >= before + size_bytes

    def close(self) -> None:
        """Serves nothing any more, and gives back whatever is empty."""
        gc.collect()
        if self.device == "cuda":
            torch.cuda.synchronize()
        self.engine.stop_recording()
        self.engine.deactivate()
        self.engine.set_serve_gaps(False)
        self.engine.poll_fences()
        self.engine.trim(True)

    def num_bad_frees(self) -> int:
        return self.engine.stats()["bad_frees"] - self._bad_frees_before

    def num_served(self) -> int:
        stats = self.engine.stats()
        return stats["slot_hits"] + stats["gap_hits"]

    def holds(self, tensor: torch.Tensor) -> bool:
        address = tensor.untyped_storage().data_ptr()
        return any(b["address"] == address and b["requested"] and not b["awaiting_free"] for b in self.engine.blocks())

    def contains(self, address: int) -> bool:
        extents = {(b["extent"], b["extent_size"]) for b in self.engine.blocks()}
        return any(base <= address < base + size for base, size in extents)
