"""The CUDA sources compile against released torch headers, without nvcc, and forward every virtual there is.

tests/header_matrix.py does the same for every torch version that we support; it is run by hand.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch_headers

TORCH_VERSION = "2.14.1"


def or_skip(fetch, *arguments):
    try:
        return fetch(*arguments)
    except LookupError as error:
        pytest.skip(f"pip serves no such wheel here: {error}")


@pytest.fixture(scope="module")
def torch_include() -> Path:
    return or_skip(torch_headers.torch_include, TORCH_VERSION)


def test_the_cuda_sources_compile_with_the_headers_of_the_wheels_alone(torch_include):
    cuda = or_skip(torch_headers.cuda_wheel_include)
    assert not (cuda / "crt").exists()
    complaints = torch_headers.compile_cuda_sources(torch_include, cuda, TORCH_VERSION)
    assert complaints == "", complaints[:4000]


def test_every_virtual_of_a_released_torch_is_forwarded(torch_include):
    found = torch_headers.virtuals(torch_include)
    assert found["recordStream"] == 2 and found["allocate"] == 1 and len(found) > 50
    assert torch_headers.missing(torch_include) == []


def test_every_virtual_of_the_installed_torch_is_forwarded():
    include = Path(torch.__file__).parent / "include"
    if not (include / "c10" / "cuda" / "CUDACachingAllocator.h").is_file():
        pytest.skip("the installed torch has no CUDA headers")
    assert torch_headers.missing(include) == []


def test_a_virtual_that_is_new_in_torch_is_named(torch_include, tmp_path):
    for name in ("c10/core/Allocator.h", "c10/core/CachingDeviceAllocator.h", "c10/cuda/CUDACachingAllocator.h"):
        text = (torch_include / name).read_text()
        text = text.replace("virtual void enable(bool value) = 0;",
                            "virtual void enable(bool value) = 0;\n  virtual std::vector<int> defragment(int a) = 0;")
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert torch_headers.missing(tmp_path) == ["defragment"]
