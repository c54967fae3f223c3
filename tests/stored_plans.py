"""Real plans for the tests of plan files and of the store: recorded steps that the planner planned."""

from __future__ import annotations

from typing import Any

import numpy as np

from stalloc_accel import _core
from stalloc_accel.fingerprint import Key, make_key


def plan_of(num_blocks: int = 50, seed: int = 0) -> dict[str, Any]:
    """A plan for steps that allocate `num_blocks` blocks of seeded sizes and free them in order."""
    sizes = np.random.default_rng(seed).integers(1, 100, num_blocks) * 512
    addresses = np.arange(1, num_blocks + 1, dtype=np.uint64)
    num_steps = 4
    trace = {
        "event_address": np.tile(np.concatenate([addresses, addresses]), num_steps),
        "event_size": np.tile(np.concatenate([sizes, np.zeros_like(sizes)]), num_steps).astype(np.int64),
        "event_role": np.zeros(2 * num_blocks * num_steps, dtype=np.int32),
        "step_begin": np.arange(num_steps + 1, dtype=np.int64) * 2 * num_blocks,
        "num_roles": 1,
    }
    return _core.build_plan(trace, True, 1.0, 1)


def key_of(**fields: Any) -> Key:
    return make_key({"model.class": "tests.Model", "version.torch": "2.13.0", "device.backend": "cpu", **fields})


def are_equal(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return set(a) == set(b) and all(
        np.array_equal(value, b[name], equal_nan=value.dtype.kind == "f") and value.dtype == b[name].dtype
        if isinstance(value, np.ndarray) else value == b[name] for name, value in a.items())
