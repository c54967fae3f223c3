"""`stalloc doctor` says what works here, what does not, and what to do about it."""

from __future__ import annotations

import json
import sys

import pytest
import torch

from stalloc_accel import toolchain
from stalloc_accel.cli.main import main


@pytest.fixture
def examine(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("STALLOC_EXTENSION_DIR", str(tmp_path / "extensions"))

    def run() -> tuple[int, dict[str, dict]]:
        status = main(["doctor", "--json"])
        document = json.loads(capsys.readouterr().out)
        assert document["ok"] == (status == 0)
        return status, {check["name"]: check for check in document["checks"]}

    return run


def test_a_machine_that_works_has_no_problem(examine):
    status, checks = examine()
    assert status == 0
    assert checks["torch"]["text"].startswith(torch.__version__)
    assert checks["door"]["state"] == "ok"
    assert "will be built at first use" in checks["cpu backend"]["text"]


def test_without_a_compiler_the_wanted_backend_is_a_problem(examine, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    status, checks = examine()
    wanted = "cuda backend" if torch.cuda.is_available() else "cpu backend"
    assert status == 1
    assert checks[wanted]["state"] == "problem" and "install g++" in checks[wanted]["text"]


def test_a_closed_door_is_told(examine, monkeypatch):
    monkeypatch.setenv("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
    assert examine()[1]["door"]["state"] == "problem"
    monkeypatch.delenv("TORCH_DEVICE_BACKEND_AUTOLOAD")
    monkeypatch.setenv("STALLOC_DISABLE", "1")
    assert examine()[1]["door"]["state"] == "note"


def test_without_torch_it_still_answers(examine, monkeypatch):
    def absent():
        raise ImportError("No module named 'torch'")

    monkeypatch.setattr(toolchain, "installed_torch", absent)
    status, checks = examine()
    assert status == 1
    assert checks["torch"]["text"] == "No module named 'torch'"
    assert "cpu backend" not in checks


def test_settings_that_keep_us_off_are_told(examine, monkeypatch):
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "backend:cudaMallocAsync")
    monkeypatch.setenv("STALLOC_CACHEDIR", "x")
    checks = examine()[1]
    assert "cannot be wrapped" in checks["PYTORCH_CUDA_ALLOC_CONF"]["text"]
    assert "Did you mean STALLOC_CACHE_DIR" in checks["environment"]["text"]


def test_the_table_ends_with_a_verdict(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("STALLOC_EXTENSION_DIR", str(tmp_path / "extensions"))
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert out.rstrip().endswith("No problem found.")
    assert sys.version.split()[0] in out
