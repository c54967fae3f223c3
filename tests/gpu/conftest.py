"""What the GPU tests stand on. They are skipped where torch sees no CUDA device; tests/gpu/run.sh runs them all."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable

import pytest
import torch
from arena import Arena

from stalloc_accel import extension


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--parity-json", metavar="FILE", help="write the rows of the parity table here")
    parser.addoption("--stress-seconds", type=float, default=30.0, help="how long the stress program runs (30)")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    for item in items:
        if "tests/gpu" in item.nodeid or "/gpu/" in str(item.path):
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))


@pytest.fixture(scope="session")
def cuda_module():
    torch.zeros(1, device="cuda")
    module = extension.load("cuda")
    module.install()
    return module


@pytest.fixture
def arena(cuda_module):
    arena = Arena(cuda_module, cuda_module.engine(0))
    yield arena
    torch.cuda.set_per_process_memory_fraction(1.0)
    arena.close()
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
