"""What is installed: an import that costs nothing, the C++ sources, the entry points and the command line."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

import stalloc_accel
from stalloc_accel.cli.main import main
from stalloc_accel.sources import csrc_dir

ROOT = Path(__file__).resolve().parent.parent


def test_import_loads_neither_torch_nor_our_engine():
    program = (
        "import sys, stalloc_accel; "
        "print(sorted(m for m in sys.modules if m.split('.')[0] in ('torch', 'numpy') or m.startswith('stalloc_accel.')))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("name", [name for name in stalloc_accel.__all__ if not name.startswith("_")])
def test_every_public_name_is_found_where_it_lives(name):
    assert getattr(stalloc_accel, name).__name__ == name
    assert name in dir(stalloc_accel)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="nothing_of_ours"):
        _ = stalloc_accel.nothing_of_ours


def test_a_checkout_has_its_sources_beside_the_package():
    assert csrc_dir() == ROOT / "csrc"


def test_a_wheel_carries_every_source_that_the_torch_part_needs(tmp_path):
    subprocess.run(
        [sys.executable, "setup.py", "-q", "egg_info", "--egg-base", tmp_path, "build_py", "--build-lib", tmp_path],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    tracked = {path.relative_to(ROOT) for pattern in ("*/*.h", "*/*.cpp") for path in (ROOT / "csrc").glob(pattern)}
    shipped = {path.relative_to(tmp_path / "stalloc_accel") for path in (tmp_path / "stalloc_accel/csrc").rglob("*.*")}
    assert tracked <= shipped


def test_torch_finds_our_entry_point():
    assert [e.value for e in entry_points(group="torch.backends") if e.name == "stalloc_accel"] == [
        "stalloc_accel.integrations.autoload:autoload"
    ]


def test_command_line_names_its_commands(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    for command in ("analyze", "cache", "doctor", "replay"):
        assert command in text


def test_command_line_refuses_an_unknown_command_with_status_two(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["analyse"])
    assert ended.value.code == 2
    assert "analyze" in capsys.readouterr().err


def test_command_line_tells_a_missing_file_in_one_line(capsys, tmp_path):
    assert main(["analyze", str(tmp_path / "missing.pickle")]) != 0
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "missing.pickle" in error
