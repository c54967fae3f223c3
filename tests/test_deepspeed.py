"""DeepSpeed: the section in its JSON by every route, updates of every engine, and mistakes."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest
from launches import BIN, SCRIPTS, one_rank, python, run

LOOP = SCRIPTS / "deepspeed_loop.py"


def config(section: object, stage: int = 2, **others: object) -> dict[str, object]:
    return {"train_micro_batch_size_per_gpu": 8, "gradient_accumulation_steps": 2, "bf16": {"enabled": stage > 0},
            "zero_optimization": {"stage": stage, "reduce_bucket_size": 4096, "allgather_bucket_size": 4096},
            "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "torch_adam": True}}, "stalloc": section, **others}


def test_two_ranks_of_the_deepspeed_launcher_are_served(tmp_path: Path) -> None:
    path = tmp_path / "ds.json"
    path.write_text(json.dumps(config({"enabled": True, "backend": "cpu"})))
    launch = run(tmp_path, BIN / "deepspeed", "--num_gpus", "2", LOOP, "--deepspeed", "--deepspeed_config", path)
    assert launch.code == 0, launch.output
    assert sorted(launch.figures) == [0, 1], launch.output
    for figures in launch.figures.values():
        assert figures["state"] == "active" and figures["steps"] == 10, launch.output
    assert launch.figures[0]["key"] != launch.figures[1]["key"], "each rank has a plan of its own"


@pytest.mark.parametrize("stage", [0, 3])
def test_a_dict_in_code_is_enough_and_losses_stay_the_same(tmp_path: Path, stage: int) -> None:
    given = json.dumps(config({"backend": "cpu"}, stage))
    launch = python(tmp_path, LOOP, f"--as-dict={given}", **one_rank())
    assert launch.code == 0, launch.output
    assert launch.figures[0]["state"] == "active" and launch.figures[0]["steps"] == 10, launch.output
    without = python(tmp_path, LOOP, f"--as-dict={given}", STALLOC_DISABLE="1", **one_rank())
    assert without.printed == launch.printed
    assert without.figures == {} and "[stalloc]" not in without.stderr


@pytest.mark.parametrize("stage", [0, 2, 3])
def test_where_we_come_late_the_second_run_is_planned_from_when_its_engine_is_built(tmp_path: Path, stage: int) -> None:
    given = json.dumps(config({"backend": "cpu", "cache_dir": str(tmp_path / "plans")}, stage))
    first, second = (python(tmp_path, LOOP, f"--as-dict={given}", **one_rank()) for _ in range(2))
    assert first.printed == second.printed, second.output
    assert "active from here on: plan found in the store" in second.stderr, second.output
    figures = second.figures[0]
    assert figures["from_cache"] and figures["activated_at_step"] == 0 and figures["state"] == "active", second.output
    assert figures["hit_rate_planned"] >= 0.98 and figures["slot_hits"] >= 0.95 * figures["requests"], figures


def test_base64_is_seen_before_deepspeed_is_imported(tmp_path: Path) -> None:
    text = base64.urlsafe_b64encode(json.dumps({"stalloc": {"profile_steps": 0}}).encode()).decode()
    early = ("import torch; from stalloc_accel.integrations import doors; print(doors.has_postponed_error()); "
             "import deepspeed; deepspeed.initialize(model=torch.nn.Linear(1, 1), config={})")
    launch = python(tmp_path, "-c", early, "--deepspeed_config", text, **one_rank())
    assert "True" in launch.stdout and launch.code == 1, launch.output
    assert "profile_steps=0" in launch.stderr, launch.output


def test_updates_of_a_pipeline_engine_are_counted(tmp_path: Path) -> None:
    launch = python(tmp_path, SCRIPTS / "pipeline.py", json.dumps({"backend": "cpu"}), **one_rank())
    assert launch.code == 0, launch.output
    assert launch.figures[0]["steps"] == 10 and launch.figures[0]["key"], launch.output


@pytest.mark.parametrize(("section", "text"), [
    ({"profile_steps": "auto"}, "must be an integer from 1 to 1000; \"auto\" has no meaning here"),
    ({"skip_step": 2}, 'Did you mean "skip_steps"?'),
    (True, "must be a section of keys and values"),
])
def test_a_mistake_in_the_section_stops_the_run_at_its_start(tmp_path: Path, section: object, text: str) -> None:
    launch = python(tmp_path, LOOP, f"--as-dict={json.dumps(config(section))}", **one_rank())
    assert launch.code == 1 and "losses" not in launch.stdout
    assert text in launch.stderr, launch.output


def test_a_near_miss_is_warned_about_and_trains(tmp_path: Path) -> None:
    given = config({"enabled": False}, Stalloc={"enabled": True})
    launch = python(tmp_path, LOOP, "--steps", "2", f"--as-dict={json.dumps(given)}", **one_rank())
    assert launch.code == 0 and launch.figures == {}, launch.output
    assert launch.stderr.count('key "Stalloc" is not read. Did you mean "stalloc"?') == 1, launch.output


_AUDIT = """
import json, sys
import deepspeed, torch
from stalloc_accel.integrations.deepspeed import _streams_of, _streams_were_audited
for given, version in json.loads(sys.argv[1]):
    deepspeed.__version__ = version
    engine, *_ = deepspeed.initialize(model=torch.nn.Linear(8, 8), config=given)
    print(_streams_were_audited(engine), _streams_of(engine))
"""


def test_streams_are_vouched_for_only_in_the_version_and_settings_that_were_read(tmp_path: Path) -> None:
    off = {"enabled": False}
    cases = [(config(off, 2), "0.19.8", True), (config(off, 3), "0.19.8", True), (config(off, 1), "0.19.8", True),
             (config(off, 2), "0.19.9", False), (config(off, 0), "0.19.8", False),
             (config(off, 2, activation_checkpointing={"cpu_checkpointing": True}), "0.19.8", False),
             (config(off, 3, compile={"deepcompile": True}), "0.19.8", False)]
    launch = python(tmp_path, "-c", _AUDIT, json.dumps([case[:2] for case in cases]), **one_rank())
    assert launch.code == 0, launch.output
    told = [line.split()[0] for line in launch.stdout.splitlines() if line.startswith(("True ", "False "))]
    assert told == [str(case[2]) for case in cases], launch.output
