"""What the GPU tests stand on. They are skipped where torch sees no CUDA device; tests/gpu/run.sh runs them all."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable

import pytest
import torch

from stalloc_accel import _core, extension

MIB = 1 << 20
CAPACITY_EVENTS = 1 << 20


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    for item in items:
        if "tests/gpu" in item.nodeid or "/gpu/" in str(item.path):
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))


class Arena:
    """The engine of device 0 with an arena that a test can fill as it likes."""

    def __init__(self, module, engine) -> None:
        self.module = module
        self.engine = engine

    def record_plan(self, step: Callable[[], object], num_steps: int = 3) -> dict:
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
        assert self.engine.activate(plan, 0)
        return plan

    def open(self, size_bytes: int) -> None:
        """Serves from now on whatever fits, on the current stream, in `size_bytes` of free space.

        The plan has one small slot and room that no slot will need, which is what small requests are served from.
        """
        plan = self.record_plan(lambda: torch.empty(512, dtype=torch.uint8, device="cuda"))
        plan["arena_bytes"] = plan["arena_bytes"] + size_bytes * (plan["arena_bytes"] > 0)
        assert self.engine.activate(plan, 0)
        assert self.engine.stats()["extent_bytes"] >= size_bytes

    def holds(self, tensor: torch.Tensor) -> bool:
        address = tensor.untyped_storage().data_ptr()
        return any(b["address"] == address and b["requested"] and not b["awaiting_free"] for b in self.engine.blocks())

    def contains(self, address: int) -> bool:
        extents = {(b["extent"], b["extent_size"]) for b in self.engine.blocks()}
        return any(base <= address < base + size for base, size in extents)


@pytest.fixture(scope="session")
def cuda_module():
    torch.zeros(1, device="cuda")
    module = extension.load("cuda")
    module.install()
    return module


@pytest.fixture
def arena(cuda_module):
    engine = cuda_module.engine(0)
    engine.set_serve_gaps(True)
    yield Arena(cuda_module, engine)
    torch.cuda.synchronize()
    torch.cuda.set_per_process_memory_fraction(1.0)
    engine.stop_recording()
    engine.deactivate()
    engine.set_serve_gaps(False)
    engine.poll_fences()
    engine.trim(True)
    torch.cuda.empty_cache()


@pytest.fixture(scope="session")
def run_python() -> Callable[..., str]:
    def run(program: str, environment: dict[str, str] | None = None) -> str:
        import os

        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(program)],
            capture_output=True,
            text=True,
            timeout=240,
            env={**os.environ, **(environment or {})},
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.strip()

    return run
