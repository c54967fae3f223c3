"""Accelerate: the section in its files, the spellings of its command line, the plugin, and what counts as a step."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from launches import BIN, SCRIPTS, Launch, python, run

from stalloc_accel.config import section_from_token

SECTION = {"enabled": True, "backend": "cpu", "profile_steps": 2}
LOOP = SCRIPTS / "accelerate_loop.py"


def write_config(folder: Path, section: object = SECTION, **others: object) -> Path:
    path = folder / "config.yaml"
    config = {"compute_environment": "LOCAL_MACHINE", "distributed_type": "NO", "num_processes": 1, "use_cpu": True,
              "mixed_precision": "no", **others}
    if section is not None:
        config["stalloc"] = section
    path.write_text(yaml.safe_dump(config))
    return path


@pytest.fixture(scope="module")
def command_lines(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Launch]:
    folder = tmp_path_factory.mktemp("command-lines")
    path = write_config(folder, fsdp_config={"stalloc": {"enabled": True}})
    as_json = folder / "config.json"
    as_json.write_text(json.dumps(yaml.safe_load(path.read_text())))
    return folder, python(folder, SCRIPTS / "command_lines.py", path, as_json)


def test_config_means_config_file_in_every_spelling_and_only_before_the_script(command_lines: tuple) -> None:
    answers = command_lines[1].printed
    spellings = {words: answer for words, answer in answers.items() if "train.py" in words}
    assert len(spellings) == 10
    for words, (is_found, rest) in spellings.items():
        assert is_found, words
        assert rest == words.split("train.py ")[1].split(), words
    for command in ("launch", "env", "test", "config", "config update", "config default"):
        assert answers[command], command
    assert answers["a parser's own --config"] == ["a", "b"]


def test_the_section_becomes_a_token_and_stays_off_the_configuration_object(command_lines: tuple) -> None:
    answers = command_lines[1].printed
    assert [section_from_token(token) for token in answers["tokens"]] == [SECTION, SECTION]
    assert not answers["attribute of config.yaml"] and not answers["attribute of config.json"]


def test_config_update_keeps_the_section(command_lines: tuple) -> None:
    folder = command_lines[0]
    assert yaml.safe_load((folder / "copy_of_config.yaml").read_text())["stalloc"] == SECTION
    assert json.loads((folder / "copy_of_config.json").read_text())["stalloc"] == SECTION


def test_a_section_at_the_wrong_place_is_warned_about(command_lines: tuple) -> None:
    assert "stalloc below fsdp_config is not read. Move it to the top level." in command_lines[1].stderr


def test_a_launch_trains_with_a_plan_and_the_second_one_starts_with_it_if_the_model_is_the_same(tmp_path: Path) -> None:
    path = write_config(tmp_path)
    command = (BIN / "accelerate", "launch", "--config", path, LOOP, "--config", "mine")
    first = run(tmp_path, *command)
    assert first.code == 0, first.output
    assert first.printed["config"] == "mine"
    assert first.figures[0]["state"] == "active" and not first.figures[0]["from_cache"], first.output
    assert first.figures[0]["steps"] == 10 and first.figures[0]["activated_at_step"] < 6
    second = run(tmp_path, *command)
    assert second.figures[0]["from_cache"] and second.figures[0]["activated_at_step"] == 0, second.output
    assert second.printed == first.printed
    without = run(tmp_path, *command, STALLOC_DISABLE="1")
    assert without.printed == {**first.printed, "has_token": False}
    assert without.figures == {} and "stalloc" not in without.stderr, without.output
    other = run(tmp_path, *command, MODEL_WIDTH="96")  # nothing in the command tells of it
    assert "differs from that of the plan found for this command. Profiling anew" in other.stderr, other.output
    assert other.figures[0]["state"] == "active" and not other.figures[0]["from_cache"], other.output
    assert other.printed["losses"] == run(tmp_path, *command, MODEL_WIDTH="96", STALLOC_DISABLE="1").printed["losses"]


@pytest.mark.parametrize("spelling", [
    ("accelerate-launch", "--config={}"), ("-m", "accelerate.commands.launch", "--config_file", "{}")])
def test_two_ranks_are_each_served(tmp_path: Path, spelling: tuple[str, ...]) -> None:
    # MULTI_CPU would need mpirun; this type takes torchrun's way and the processes use the CPU all the same.
    path = write_config(tmp_path, distributed_type="MULTI_GPU", num_processes=2)
    words = [word.format(path) for word in spelling]
    launch = run(tmp_path, *([BIN / words[0]] if words[0] != "-m" else [BIN / "python", words[0]]), *words[1:], LOOP,
                 "--cpu", STALLOC_MAX_LENGTH="64")
    assert launch.code == 0, launch.output
    assert "max_length" not in launch.stderr, "the loader tells the number of samples in a batch"
    assert launch.printed["ranks"] == 2
    assert sorted(launch.figures) == [0, 1], launch.output
    assert {figures["state"] for figures in launch.figures.values()} == {"active"}, launch.output
    assert {figures["steps"] for figures in launch.figures.values()} == {10}
    assert launch.stderr.count("[stalloc] recording") == 1, "only rank 0 speaks"


def test_an_unknown_key_stops_the_launch_and_names_the_nearest(tmp_path: Path) -> None:
    path = write_config(tmp_path, {"profil_steps": 3})
    launch = run(tmp_path, BIN / "accelerate", "launch", "--config_file", path, LOOP)
    assert launch.code != 0 and "losses" not in launch.stdout
    assert "profil_steps=3" in launch.stderr and 'Did you mean "profile_steps"?' in launch.stderr, launch.output
    assert str(path) in launch.stderr.splitlines()[-1]


def test_the_kill_switch_accepts_even_a_broken_section(tmp_path: Path) -> None:
    path = write_config(tmp_path, {"profil_steps": 3})
    launch = run(tmp_path, BIN / "accelerate", "launch", "--config", path, LOOP, STALLOC_DISABLE="1")
    assert launch.code == 0 and launch.printed["has_token"] is False, launch.output


def test_a_near_miss_is_named_before_accelerate_refuses_it(tmp_path: Path) -> None:
    path = write_config(tmp_path, None, stallok={"enabled": True})
    launch = run(tmp_path, BIN / "accelerate", "launch", "--config", path, LOOP)
    assert launch.code != 0
    assert 'key "stallok" is not read. Did you mean "stalloc"?' in launch.stderr, launch.output


def test_deepspeed_json_outranks_the_yaml_and_the_conflict_is_told_once(tmp_path: Path) -> None:
    inline = {"train_micro_batch_size_per_gpu": 8, "zero_optimization": {"stage": 2},
              "stalloc": {"profile_steps": 3, "dynamic": "auto", "backend": "cpu"}}
    # Accelerate wants no mixed_precision of its own beside a DeepSpeed configuration.
    path = write_config(tmp_path, distributed_type="DEEPSPEED", mixed_precision=None,
                        deepspeed_config={"deepspeed_config_file": json.dumps(inline)})
    launch = run(tmp_path, BIN / "accelerate", "launch", "--config", path, LOOP, "--steps", "12")
    assert launch.code == 0, launch.output
    assert launch.figures[0]["state"] == "active", launch.output
    assert launch.figures[0]["steps"] == 12
    assert launch.stderr.count("profile_steps=3, from DeepSpeed JSON is used") == 1, launch.output


def test_the_plugin_counts_updates_in_every_style_and_feeds_trackers(tmp_path: Path) -> None:
    launch = python(tmp_path, SCRIPTS / "accelerate_code.py")
    assert launch.code == 0, launch.output
    assert launch.printed["counts"] == {"plain": 8, "accumulating": 2, "two optimizers": 8}
    assert {"loss", "stalloc/hit_rate", "stalloc/fallbacks"} <= set(launch.printed["notes"])
    assert launch.printed["to_kwargs"] == {"backend": "cpu", "profile_steps": 3}
    assert launch.printed["same"]
    off = python(tmp_path, SCRIPTS / "accelerate_code.py", STALLOC_DISABLE="1")
    assert off.code == 0 and off.figures == {}, off.output
    assert off.printed["notes"] == ["loss"] and off.printed["same"]
