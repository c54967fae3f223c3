"""Each feature of torch and of its libraries does with us what it does without us.

    python -m pytest tests/gpu/test_parity.py --parity-json rows.json
    python tests/gpu/compatibility_page.py rows.json docs/compatibility.md
"""

from __future__ import annotations

import concurrent.futures
import datetime
import json
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

import parity
import pytest
import torch

CASES = [(area, variant, feature.name) for area in parity.AREAS for variant in parity.table_of(area).variants
         for feature in parity.table_of(area).features]


def versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "torch": torch.__version__, "cuda": str(torch.version.cuda),
             "device": torch.cuda.get_device_name(), "num_devices": str(torch.cuda.device_count())}
    for name in ("stalloc-accel", "transformers", "accelerate", "peft", "timm", "deepspeed", "triton"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


class Rows:
    """The rows of the areas that were asked for. These run a few at a time, from when the first row is wanted."""

    NUM_AT_ONCE = 4  # two processes each

    def __init__(self, areas: list[tuple[str, str]]) -> None:
        self.pool = concurrent.futures.ThreadPoolExecutor(self.NUM_AT_ONCE)
        longest_first = sorted(areas, key=lambda area: -sum(f.seconds for f in parity.table_of(area[0]).features))
        self.areas = {area: self.pool.submit(parity.compare, *area) for area in longest_first}

    def row(self, area: str, variant: str, feature: str) -> dict[str, Any]:
        return next(row for row in self.areas[area, variant].result() if row["feature"] == feature)

    def as_json(self) -> str:
        ran = [area for area, future in self.areas.items() if future.done() and not future.cancelled() and not future.exception()]
        rows = [row for area in sorted(ran, key=lambda area: parity.AREAS.index(area[0])) for row in self.areas[area].result()]
        return json.dumps({"versions": versions(), "date": datetime.date.today().isoformat(), "rows": rows}, indent=1)


@pytest.fixture(scope="session")
def rows(cuda_module, request):  # cuda_module: built once here, and not by all sides at once
    asked = [item.callspec.params for item in request.session.items if "variant" in getattr(item, "fixturenames", ())]
    rows = Rows(list(dict.fromkeys((params["area"], params["variant"]) for params in asked)))
    yield rows
    rows.pool.shutdown(cancel_futures=True)
    path = request.config.getoption("--parity-json", default=None)
    if path:
        Path(path).write_text(rows.as_json())


@pytest.mark.parametrize(("area", "variant", "feature"), CASES, ids=["-".join(filter(None, case)) for case in CASES])
def test_a_feature_is_the_same_with_us(rows, area, variant, feature):
    row = rows.row(area, variant, feature)
    if row["status"] == "skipped":
        pytest.skip(row["problem"])
    assert row["status"] == "same", f"{row['problem']}\nnative: {row['native']}\nours: {row['ours']}\nserved: {row['served']}"
