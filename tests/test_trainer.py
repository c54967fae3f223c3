"""The Trainer: our callback by hand and by itself, updates counted once, figures in its logs, losses unchanged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from launches import BIN, SCRIPTS, Launch, one_rank, python, run

SCRIPT = SCRIPTS / "trainer_run.py"
STOCK_CALLBACKS = ["DefaultFlowCallback", "PrinterCallback"]
DEEPSPEED = {"train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto",
             "zero_optimization": {"stage": 2, "reduce_bucket_size": 4096, "allgather_bucket_size": 4096},
             "zero_allow_untested_optimizer": True, "stalloc": {"backend": "cpu", "dynamic": "auto"}}


@pytest.fixture(scope="module")
def without_us(tmp_path_factory: pytest.TempPathFactory) -> Launch:
    return python(tmp_path_factory.mktemp("without"), SCRIPT)


def losses(launch: Launch) -> list[Any]:
    return [entry["loss"] for entry in launch.printed["log_history"] if "loss" in entry]


def test_a_trainer_that_did_not_ask_keeps_its_callbacks(without_us: Launch) -> None:
    assert without_us.code == 0, without_us.output
    assert without_us.printed["callbacks"] == STOCK_CALLBACKS
    assert without_us.figures == {} and "stalloc" not in without_us.output


def test_the_callback_counts_each_update_once_and_logs_figures(tmp_path: Path, without_us: Launch) -> None:
    launch = python(tmp_path, SCRIPT, "--callback", STALLOC_BACKEND="cpu")
    assert launch.code == 0, launch.output
    assert launch.figures[0]["steps"] == 10, "two callbacks are present, one announces"
    # Every second step logs: two of each kind are recorded, the next one is compared.
    assert launch.figures[0]["state"] == "active" and launch.figures[0]["activated_at_step"] <= 6, launch.output
    assert launch.figures[0]["hit_rate"] >= 0.99, launch.figures
    assert losses(launch) == losses(without_us)
    assert "stalloc_hit_rate" in launch.printed["log_history"][-2]
    assert "'stalloc_hit_rate':" in launch.stdout, "reporters and printers see it too"
    off = python(tmp_path, SCRIPT, "--callback", STALLOC_DISABLE="1")
    assert losses(off) == losses(without_us) and off.figures == {} and "stalloc_" not in off.stdout, off.output


def test_max_length_makes_room_for_the_longest_batch_before_it_comes(tmp_path: Path) -> None:
    lengths = ("--lengths", *(4, 7, 5, 6, 7, 4, 6, 5) * 4, 16)
    launches = {name: python(tmp_path, SCRIPT, "--callback", "--steps", 24, *lengths, STALLOC_BACKEND="cpu", **settings)
                for name, settings in {"as they come": {}, "at once": {"STALLOC_MAX_LENGTH": "16"}}.items()}
    for launch in launches.values():
        assert launch.code == 0 and launch.figures[0]["state"] == "active", launch.output
        assert losses(launch) == losses(launches["as they come"])
    assert "for longer batches" in launches["as they come"].stderr
    assert "for longer batches" not in launches["at once"].stderr
    assert launches["at once"].figures[0]["fallbacks"].get("too_long", 0) == 0, launches["at once"].figures


def test_evaluations_and_saves_between_steps_keep_the_plan(tmp_path: Path) -> None:
    without = python(tmp_path, SCRIPT, "--phases", "--steps", 20)
    launch = python(tmp_path, SCRIPT, "--callback", "--phases", "--steps", 20, STALLOC_BACKEND="cpu")
    assert launch.code == without.code == 0, launch.output
    assert launch.figures[0]["state"] == "active", launch.output
    assert launch.figures[0]["hit_rate_planned"] >= 0.85, "the evaluation's own requests included, whose outputs are kept meanwhile"
    assert losses(launch) == losses(without)
    for entry, same in zip(launch.printed["log_history"], without.printed["log_history"], strict=True):
        assert entry.get("eval_loss") == same.get("eval_loss")


@pytest.mark.parametrize("as_dict", [False, True])
def test_the_section_in_its_deepspeed_configuration_is_enough(tmp_path: Path, as_dict: bool) -> None:
    path = tmp_path / "ds.json"
    path.write_text(json.dumps(DEEPSPEED))
    option = f"--deepspeed-dict={json.dumps(DEEPSPEED)}" if as_dict else f"--deepspeed={path}"
    launch = python(tmp_path, SCRIPT, option, **one_rank())
    assert launch.code == 0, launch.output
    assert launch.printed["callbacks"] == ["DefaultFlowCallback", "ConfiguredStallocCallback", "PrinterCallback"]
    assert launch.figures[0]["steps"] == 10 and launch.figures[0]["state"] == "active", launch.output


def test_the_section_in_an_accelerate_file_is_enough(tmp_path: Path, without_us: Launch) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump({"distributed_type": "NO", "use_cpu": True, "stalloc": {"backend": "cpu"}}))
    launch = run(tmp_path, BIN / "accelerate", "launch", f"--config={path}", SCRIPT)
    assert launch.code == 0, launch.output
    assert launch.figures[0]["steps"] == 10 and launch.figures[0]["state"] == "active", launch.output
    assert losses(launch) == losses(without_us)


def test_a_mistake_in_the_environment_stops_where_the_trainer_is_built(tmp_path: Path) -> None:
    launch = python(tmp_path, SCRIPT, STALLOC_ENABLED="1", STALLOC_CACHE="sometimes")
    assert launch.code == 1 and "loss" not in launch.stdout
    assert "cache='sometimes', must be one of readwrite, readonly, off" in launch.stderr, launch.output
