"""The allocator interface of the torch that runs here is forwarded in full."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch_headers
from gpu_helpers import MIB


def test_every_virtual_of_this_torch_is_forwarded():
    include = Path(torch.__file__).parent / "include"
    if not (include / "c10" / "cuda" / "CUDACachingAllocator.h").is_file():
        pytest.skip("this torch comes without its headers")
    found = torch_headers.virtuals(include)
    assert sum(found.values()) > 40 and found["recordStream"] >= 1
    assert torch_headers.missing(include) == []


def test_a_pointer_that_is_no_block_is_refused_and_counted(arena):
    arena.open(32 * MIB)
    tensor = torch.ones(1000, device="cuda")
    bad_frees = arena.engine.stats()["bad_frees"]
    torch.cuda.caching_allocator_delete(tensor.data_ptr() + 512)
    assert arena.engine.stats()["bad_frees"] == bad_frees + 1
    assert arena.holds(tensor) and float(tensor.sum()) == 1000
