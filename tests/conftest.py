"""What every test gets: a cache folder of its own, no network, and seeds that are printed and can be given again."""

from __future__ import annotations

import logging
import os
import random
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from recipes.processes import use_own_builds

# Before any test module imports a host: the hub is never asked.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # several processes share the cores, and OpenMP's threads wait by spinning
# A developer's own settings must not reach the tests, nor the processes that they start.
for _name in [name for name in os.environ if name.startswith("STALLOC_")]:
    del os.environ[_name]
if "PYTEST_XDIST_WORKER" not in os.environ:
    use_own_builds()
    os.environ.setdefault("TEST_SEED", str(random.SystemRandom().randrange(2**31)))


def pytest_report_header(config: pytest.Config) -> str:
    return f"stalloc seed: {_session_seed()} (TEST_SEED={_session_seed()} repeats this run)"


def pytest_xdist_auto_num_workers() -> int:
    """One process where there is a GPU: its tests measure memory that all processes share."""
    return 0 if torch.cuda.is_available() else min(os.cpu_count() or 1, 4)


def _session_seed() -> int:
    return int(os.environ["TEST_SEED"])


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """A seed that differs from test to test and from run to run, and is shown when the test fails."""
    value = random.Random(f"{_session_seed()}:{request.node.nodeid}").randrange(2**31)
    print(f"seed: {value} (TEST_SEED={_session_seed()})")
    return value


@pytest.fixture
def rng(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.fixture(autouse=True)
def isolated_cache_dir(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> str:
    """No test reads or writes the user's plan store."""
    path = tmp_path_factory.mktemp("stalloc-cache")
    monkeypatch.setenv("STALLOC_CACHE_DIR", str(path))
    return str(path)


@pytest.fixture(autouse=True)
def own_logger_settings() -> Iterator[None]:
    """A session sets level and handlers of our logger, which is the process's: the next test finds them as they were."""
    logger = logging.getLogger("stalloc_accel")
    level, handlers, propagates = logger.level, list(logger.handlers), logger.propagate
    yield
    logger.setLevel(level)
    logger.handlers[:] = handlers
    logger.propagate = propagates
