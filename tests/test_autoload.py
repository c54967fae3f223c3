"""The entry point in `import torch`: roles, import orders, what it costs, and that it never harms."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from launches import SCRIPTS, Launch, python

from stalloc_accel.process import Role, role_of

IMPORT_ORDERS = {
    "torch": "import torch",
    "accelerate": "import accelerate",
    "deepspeed": "import deepspeed",
    "trainer": "from transformers import Trainer",
    "arguments": "from transformers import TrainingArguments, Trainer",
    "plugin": "from stalloc_accel import StallocPlugin",
    "callback": "from stalloc_accel import StallocCallback",
    "late": "import os; os.environ['TORCH_DEVICE_BACKEND_AUTOLOAD'] = '0'; import accelerate, deepspeed, "
            "transformers.trainer; from stalloc_accel import StallocPlugin",
}

QUIET = """
import os, sys, time
os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
import torch
from importlib.metadata import entry_points
before = set(sys.modules)
began = time.process_time()
[entry] = [entry for entry in entry_points(group="torch.backends") if entry.name == "stalloc_accel"]
found = time.process_time()
entry.load()()
import json
print(json.dumps({"loaded": sorted(set(sys.modules) - before), "ms": 1000 * (time.process_time() - found)}))
"""


@pytest.mark.parametrize(("command_line", "role"), [
    ("python train.py --deepspeed ds.json", Role.RANK),
    ("python -u train.py", Role.RANK),
    ("python -m my.train", Role.RANK),
    ("python -W ignore -X dev -um pytest tests", Role.RANK),
    ("python -c pass", Role.RANK),
    ("python", Role.RANK),
    ("python /home/me/accelerate/train.py", Role.RANK),
    ("python /home/me/deepspeed.py", Role.RANK),
    ("python /home/me/stalloc_accel/train.py", Role.RANK),
    ("python -m accelerate_train", Role.RANK),
    ("python /opt/bin/accelerate launch train.py", Role.LAUNCHER),
    ("python /opt/bin/accelerate-launch train.py", Role.LAUNCHER),
    ("python -m accelerate.commands.launch --config=f.yaml train.py", Role.LAUNCHER),
    ("python -um accelerate.commands.accelerate_cli launch train.py", Role.LAUNCHER),
    ("python -maccelerate.commands.launch train.py", Role.LAUNCHER),
    ("python /site-packages/accelerate/commands/launch.py train.py", Role.LAUNCHER),
    ("python /opt/bin/torchrun train.py", Role.LAUNCHER),
    ("python -m torch.distributed.run train.py", Role.LAUNCHER),
    ("python /opt/bin/deepspeed train.py", Role.LAUNCHER),
    ("python -u -m deepspeed.launcher.launch --world_info=x train.py", Role.LAUNCHER),
    ("python /opt/bin/stalloc doctor", Role.LAUNCHER),
    ("python /site-packages/torch/_inductor/compile_worker/__main__.py --pickler=x", Role.COMPILE_WORKER),
    ("python -m torch._inductor.compile_worker", Role.COMPILE_WORKER),
])
def test_a_process_is_told_by_its_command_line(command_line: str, role: Role) -> None:
    assert role_of(command_line.split()) is role


def test_children_of_multiprocessing_are_told_by_the_code_they_are_given() -> None:
    spawned = "from multiprocessing.spawn import spawn_main; spawn_main(tracker_fd=5, pipe_handle=7)"
    assert role_of(["python", "-c", spawned, "--multiprocessing-fork"]) is Role.SPAWN_CHILD
    assert role_of(["python", "-E", "-c", "from multiprocessing.forkserver import main; main(3, 4, [])"]) \
        is Role.SPAWN_CHILD


@pytest.fixture(scope="module")
def orders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Launch]:
    """Every order in a process of its own, two at a time."""
    def launch(name: str) -> Launch:
        return python(tmp_path_factory.mktemp(name), SCRIPTS / "import_order.py", IMPORT_ORDERS[name])

    with ThreadPoolExecutor(2) as pool:
        return dict(zip(IMPORT_ORDERS, pool.map(launch, IMPORT_ORDERS), strict=True))


@pytest.mark.parametrize("order", IMPORT_ORDERS)
def test_every_import_order_hooks_the_hosts_and_leaves_stock_types(orders: dict[str, Launch], order: str) -> None:
    launch = orders[order]
    assert launch.code == 0, launch.output
    assert launch.printed["unhooked"] == []
    assert launch.printed["foreign_specs"] == []
    assert launch.printed["foreign_loaders"] == []
    assert launch.printed["waiting"] in ([], ["deepspeed.launcher.runner"])
    assert not launch.printed["has_session"], "no section asks for us"
    assert launch.printed["default_callbacks"] == ["DefaultFlowCallback"]


def test_an_import_that_nobody_asked_us_in_is_silent_and_cheap(tmp_path: Path) -> None:
    python(tmp_path, "-c", QUIET)  # writes the bytecode, where that is allowed
    launch = python(tmp_path, "-c", QUIET)
    assert launch.stderr == ""
    assert set(launch.printed["loaded"]) <= {
        "stalloc_accel", "stalloc_accel.integrations", "stalloc_accel.integrations.autoload",
        "stalloc_accel.integrations.import_hooks", "stalloc_accel.process"}
    assert launch.printed["ms"] < 25, "about 2 ms on an idle machine, 5 without bytecode"


def test_the_environment_starts_a_session_in_a_bare_loop(tmp_path: Path) -> None:
    launch = python(tmp_path, SCRIPTS / "bare_loop.py", STALLOC_ENABLED="1", STALLOC_BACKEND="cpu")
    assert launch.code == 0, launch.output
    assert launch.figures[0]["state"] == "active", launch.output
    assert launch.figures[0]["steps"] == 10
    assert "[stalloc] active" in launch.stderr
    without = python(tmp_path, SCRIPTS / "bare_loop.py", STALLOC_ENABLED="1", STALLOC_DISABLE="1")
    assert without.printed == launch.printed
    assert without.figures == {} and without.stderr == ""


def test_spawned_children_and_their_like_start_nothing(tmp_path: Path) -> None:
    launch = python(tmp_path, SCRIPTS / "spawn_child.py", STALLOC_ENABLED="1", STALLOC_BACKEND="cpu")
    assert launch.printed == {"child": False, "parent": True}, launch.output


def test_a_mistake_in_the_environment_lets_torch_in_and_stops_at_the_first_step(tmp_path: Path) -> None:
    launch = python(tmp_path, SCRIPTS / "bare_loop.py", STALLOC_ENABLED="1", STALLOC_PROFILE_STEPS="0")
    assert launch.code == 1
    assert "ConfigError: " in launch.stderr and "profile_steps=0" in launch.stderr, launch.output
    assert "optimizer.step()" in launch.stderr, "import torch went through"
