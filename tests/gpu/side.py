"""The allocator that a parity feature runs on: torch's own, or ours."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import torch


class Side:
    """Torch's own allocator: what ours does more is nothing here."""

    name = "native"
    device = "cuda"

    def begin(self, arena_bytes: int) -> None:
        """Before a feature; ours serves from `arena_bytes` of free space from here on."""
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()

    def end(self) -> dict[str, Any]:
        """After it: what is to be known beside its result."""
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.set_per_process_memory_fraction(1.0)
        torch.cuda.empty_cache()
        return {}

    def train(self, step: Callable[[], Any], num_steps: int = 8) -> list[Any]:
        """What each step returns; ours records the second to fourth and serves the others from their plan."""
        return [step() for _ in range(num_steps)]

    def is_served(self, tensor: torch.Tensor) -> bool:
        """Whether ours serves the tensor; here, where nothing does, always true."""
        return True

    def close(self) -> None:
        """Ends the plan before the feature ends: the arena goes, as soon as it is empty."""

    def limit(self, size_bytes: int) -> None:
        """Leaves room for `size_bytes` more than is reserved now. Ours counts its arena to that room."""
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        total = torch.cuda.get_device_properties(0).total_memory
        taken = torch.cuda.memory_reserved() - self._arena_bytes()
        torch.cuda.set_per_process_memory_fraction((taken + size_bytes) / total)

    def _arena_bytes(self) -> int:
        return 0


class OurSide(Side):
    """Ours, installed before CUDA starts, as the doors do."""

    name = "ours"

    def __init__(self, device_index: int) -> None:
        from arena import Arena

        from stalloc_accel import extension

        module = extension.load("cuda")
        module.install()
        torch.cuda.init()
        self.arena = Arena(module, module.engine(device_index))
        self.served_before = self.bad_frees_before = 0

    def begin(self, arena_bytes: int) -> None:
        super().begin(arena_bytes)
        self.arena.engine.set_serve_gaps(True)
        self.served_before = self.arena.num_served()
        self.bad_frees_before = self.arena.engine.stats()["bad_frees"]
        if arena_bytes > 0:
            self.arena.open(arena_bytes)

    def end(self) -> dict[str, Any]:
        stats = self.arena.engine.stats()
        served = self.arena.num_served() - self.served_before
        self.arena.close()
        super().end()
        bad_frees = stats["bad_frees"] - self.bad_frees_before
        return {"served": served, "unclean": f"{bad_frees} bad frees" if bad_frees else ""}

    def train(self, step: Callable[[], Any], num_steps: int = 8) -> list[Any]:
        engine = self.arena.engine
        results = [step()]
        engine.end_step()
        plan = self.arena.record_plan(lambda: results.append(step()), warm_up=False)
        if not engine.activate(plan, 0):
            raise RuntimeError("no room for the arena")
        while len(results) < num_steps:
            results.append(step())
            engine.end_step()
        return results

    def is_served(self, tensor: torch.Tensor) -> bool:
        return self.arena.holds(tensor)

    def close(self) -> None:
        self.arena.engine.deactivate()
        self.arena.engine.set_serve_gaps(False)
        self.arena.engine.poll_fences()

    def _arena_bytes(self) -> int:
        return self.arena.engine.stats()["extent_bytes"]


class RefusedSide(Side):
    """Where ours has to stay off: torch's allocator, and the reason that ours gave."""

    name = "ours"

    def __init__(self, refusal: str) -> None:
        self.refusal = refusal

    def end(self) -> dict[str, Any]:
        return {**super().end(), "served": 0, "refused": self.refusal}


class Rehearsal(Side):
    """No allocator is compared: for a look at the programs themselves on a machine without a GPU."""

    name = "rehearsal"
    device = "cpu"

    def begin(self, arena_bytes: int) -> None:
        pass

    def end(self) -> dict[str, Any]:
        return {}


def make_side(name: str, device_index: int = 0) -> Side:
    """Raises KeyError for a name that is none."""
    if name != "ours":
        return {"native": Side, "rehearsal": Rehearsal}[name]()
    try:
        return OurSide(device_index)
    except ValueError as refusal:
        return RefusedSide(str(refusal))
