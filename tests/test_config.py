"""The configuration: what is accepted, what is refused and how it is told, and which source wins."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stalloc_accel import environment
from stalloc_accel.config import (
    Source,
    StallocConfig,
    field_docs,
    keys_table,
    merge,
    near_misses,
    section_from_token,
    section_token,
)
from stalloc_accel.errors import ConfigError, StallocError

PAGE = Path(__file__).parent.parent / "docs" / "configuration.md"


def refusal_of(section: object) -> str:
    with pytest.raises(ConfigError) as caught:
        StallocConfig.from_mapping(section, "ds.json")
    return str(caught.value)


def test_importing_the_configuration_loads_nothing_heavy():
    code = ("import sys, stalloc_accel.config, stalloc_accel.environment, stalloc_accel.fingerprint, "
            "stalloc_accel.plan_store\n"
            "print([name for name in ('torch', 'numpy', 'yaml', 'safetensors', 'rich', 'filelock') if name in sys.modules])")
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output.strip() == "[]"


def test_an_empty_section_has_the_documented_defaults():
    config = StallocConfig.from_mapping({}, "ds.json")
    assert (config.enabled, config.profile_steps, config.skip_steps, config.cache, config.max_arena, config.max_length,
            config.dynamic, config.handover, config.backend) == (
        True, 2, 1, "readwrite", "auto", None, "auto", "audited", "auto")


@pytest.mark.parametrize(("section", "nearest"), [
    ({"profile_step": 3}, "profile_steps"), ({"Profile-Steps": 3}, "profile_steps"), ({"cachedir": "x"}, "cache_dir"),
    ({"enable": True}, "enabled"), ({"max_lenght": 4}, "max_length"), ({"loglevel": "info"}, "log_level"),
])
def test_an_unknown_key_is_refused_with_the_nearest_one_named(section, nearest):
    text = refusal_of(section)
    assert text.startswith("ds.json: ") and "no such key" in text and text.endswith(f'Did you mean "{nearest}"?')


def test_an_unknown_key_that_is_near_to_none_is_refused_with_all_of_them():
    assert "The keys are enabled, profile_steps" in refusal_of({"zzz": 1})
    assert "no such key" in refusal_of({7: 1})


@pytest.mark.parametrize("section", [
    {"enabled": 1}, {"enabled": "true"}, {"enabled": None}, {"profile_steps": True}, {"profile_steps": "2"},
    {"profile_steps": 2.0}, {"profile_steps": 0}, {"profile_steps": 1001}, {"profile_steps": None}, {"skip_steps": -1},
    {"skip_steps": False}, {"cache_dir": 3}, {"cache_dir": ""}, {"cache_dir": "a\0b"}, {"cache": "always"}, {"cache": True},
    {"cache": ["off"]}, {"max_arena": 1}, {"max_arena": 0}, {"max_arena": 0.0}, {"max_arena": 1.5}, {"max_arena": -0.5},
    {"max_arena": float("nan")}, {"max_arena": float("inf")}, {"max_arena": True}, {"max_arena": "8GB"},
    {"max_arena": "half"}, {"max_arena": None}, {"max_arena": 1 << 62}, {"max_length": 0}, {"max_length": "512"},
    {"max_length": True}, {"dynamic": "on"}, {"dynamic": True}, {"handover": False}, {"handover": None},
    {"backend": "rocm"}, {"summary_file": 1}, {"log_level": 20}, {"log_level": "INFO"}, {"profile_steps": 10**5000},
])
def test_a_wrong_type_or_an_impossible_value_is_refused_in_the_house_form(section):
    (key,) = section
    assert re.fullmatch(rf"ds\.json: {key}=.*, must be .*\. .+", refusal_of(section), re.DOTALL)


@pytest.mark.parametrize("key", ["enabled", "profile_steps", "skip_steps", "cache_dir", "cache", "max_length", "handover",
                                 "summary_file", "log_level"])
def test_auto_is_refused_where_it_has_no_meaning(key):
    assert '"auto" has no meaning here' in refusal_of({key: "auto"})


def test_auto_is_a_value_of_four_keys():
    config = StallocConfig.from_mapping({"max_arena": "auto", "dynamic": "auto", "expandable_segments": "auto",
                                          "backend": "auto"}, "ds.json")
    assert config == StallocConfig()


@pytest.mark.parametrize("section", [True, None, 3, "on", [], [("enabled", True)]])
def test_a_section_that_is_no_mapping_is_refused(section):
    assert 'Write {"stalloc": {"enabled": true}}.' in refusal_of(section)


def test_a_hostile_value_does_not_flood_the_message():
    assert len(refusal_of({"profile_steps": "x" * 100_000})) < 400


def test_a_bare_off_that_yaml_reads_as_false_means_off():
    import yaml

    config = StallocConfig.from_mapping(yaml.safe_load("cache: off\ndynamic: off\nmax_length: ~"), "stalloc.yaml")
    assert (config.cache, config.dynamic, config.max_length) == ("off", "off", None)


@pytest.mark.parametrize(("given_value", "num_bytes"), [
    ("8GiB", 8 << 30), ("1.5 gib", 3 << 29), ("512MiB", 512 << 20), (1 << 20, 1 << 20), (0.5, 50 << 30), (1.0, 100 << 30),
])
def test_max_arena_is_bytes_text_or_a_fraction_of_the_device(given_value, num_bytes):
    assert StallocConfig(max_arena=given_value).max_arena_bytes(100 << 30) == num_bytes
    assert StallocConfig().max_arena_bytes(100 << 30) is None


def test_construction_in_code_checks_as_a_file_does(tmp_path):
    with pytest.raises(ConfigError, match="profile_steps=True"):
        StallocConfig(profile_steps=True)
    with pytest.raises(TypeError):
        StallocConfig(True)  # keyword only
    assert StallocConfig(cache_dir=tmp_path).cache_dir == str(tmp_path)
    assert issubclass(ConfigError, ValueError) and issubclass(ConfigError, StallocError)


SECTIONS = st.fixed_dictionaries({}, optional={
    "enabled": st.booleans(), "profile_steps": st.integers(1, 1000), "skip_steps": st.integers(0, 1000),
    "cache": st.sampled_from(["readwrite", "readonly", "off"]), "max_length": st.none() | st.integers(1, 1 << 31),
    "max_arena": st.just("auto") | st.integers(1 << 20, 1 << 50) | st.floats(0, 1, exclude_min=True),
    "cache_dir": st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1).filter(
        lambda text: text.strip() and text != "auto"),
})


@given(SECTIONS)
def test_a_token_holds_every_section_without_blanks(section):
    token = section_token(section)
    assert re.fullmatch(r"[A-Za-z0-9_=-]+", token)
    assert section_from_token(token) == section
    config = StallocConfig.from_mapping(section, "x")
    assert StallocConfig.from_token(config.to_token()) == config


@pytest.mark.parametrize("token", ["", "{}", "not base64!", "bm90IGpzb24=", "é", "W10=", section_token({})[:-1] + "*",
                                   "WyI=" * 50_000])
def test_a_token_that_is_none_is_refused(token):
    with pytest.raises(ConfigError, match="STALLOC_CONFIG"):
        section_from_token(token)


def test_the_stronger_source_wins_key_by_key_and_a_conflict_is_told():
    config, conflicts = merge([
        (Source.CODE, {"profile_steps": 4}), (Source.YAML, {"profile_steps": 3, "skip_steps": 2, "cache": "off"}),
        (Source.ENVIRONMENT, {"skip_steps": 2, "cache_dir": "/env"}), (Source.DEEPSPEED, {"cache": "readonly"}),
    ])
    assert (config.profile_steps, config.skip_steps, config.cache, config.cache_dir) == (4, 2, "readonly", "/env")
    assert conflicts == [
        "configuration: cache='readonly', from DeepSpeed JSON is used. The value 'off' from Accelerate YAML is ignored.",
        "configuration: profile_steps=4, from code is used. The value 3 from Accelerate YAML is ignored.",
    ]


def test_a_section_that_is_overruled_is_checked_all_the_same():
    with pytest.raises(ConfigError, match="Accelerate YAML: profile_step=1"):
        merge([(Source.CODE, {"profile_steps": 4}), (Source.YAML, {"profile_step": 1})])


def test_no_section_at_all_gives_the_defaults():
    assert merge([]) == (StallocConfig(), [])


def test_near_misses_outside_the_section_are_told():
    outer = {"stallok": {}, "Stalloc": {}, "stalloc_config": {}, "st-alloc": {}, "stalloc": {}, "zero_optimization": {},
             "fsdp_config": {}, "distributed_type": "NO", "install": 1, "alloc": 1, "train_batch_size": 8, 5: 1}
    told = near_misses(outer)
    assert [re.search(r'key "([^"]+)"', text)[1] for text in told] == ["stallok", "Stalloc", "stalloc_config", "st-alloc"]


def test_every_key_can_be_given_in_the_environment(tmp_path):
    given_variables = {
        "STALLOC_ENABLED": "1", "STALLOC_PROFILE_STEPS": "3", "STALLOC_SKIP_STEPS": "0", "STALLOC_CACHE_DIR": str(tmp_path),
        "STALLOC_CACHE": "readonly", "STALLOC_MAX_ARENA": "0.5", "STALLOC_MAX_LENGTH": "4096", "STALLOC_DYNAMIC": "off",
        "STALLOC_HANDOVER": "none", "STALLOC_EXPANDABLE_SEGMENTS": "off",
        "STALLOC_BACKEND": "cpu", "STALLOC_SUMMARY_FILE": "1", "STALLOC_LOG_LEVEL": "error",
    }
    section = environment.section(given_variables)
    config = StallocConfig.from_mapping(section, "environment")
    assert list(section) == list(environment.CONFIG_KEYS) == list(StallocConfig.__dataclass_fields__)
    assert {**config.to_mapping(), "enabled": True} == section


@pytest.mark.parametrize(("name", "text"), [("STALLOC_ENABLED", "maybe"), ("STALLOC_PROFILE_STEPS", "two"),
                                            ("STALLOC_MAX_LENGTH", "1.5"), ("STALLOC_CACHE", "auto")])
def test_a_bad_variable_is_refused_by_name(name, text):
    with pytest.raises(ConfigError, match=f"{name}|{name.removeprefix('STALLOC_').lower()}"):
        merge([(Source.ENVIRONMENT, environment.section({name: text}))])


def test_an_empty_variable_counts_as_not_set():
    assert environment.section({"STALLOC_ENABLED": "", "STALLOC_CACHE_DIR": "  "}) == {}


def test_a_variable_that_nothing_reads_is_told_with_the_nearest_one():
    (text,) = environment.unknown_variables({"STALLOC_PROFILE_STEP": "3", "STALLOC_CACHE_DIR": "x", "HOME": "/"})
    assert text.endswith("Did you mean STALLOC_PROFILE_STEPS?")


@pytest.mark.parametrize(("text", "is_disabled"), [("1", True), ("true", True), ("yes please", True), ("0", False),
                                                   ("off", False), ("", False), (" ", False)])
def test_the_kill_switch_does_not_depend_on_spelling(monkeypatch, text, is_disabled):
    monkeypatch.setenv("STALLOC_DISABLE", text)
    assert environment.is_disabled() is is_disabled


def test_directories_and_summary_files_fall_back_to_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("STALLOC_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("STALLOC_SUMMARY_FILE", "summary-{rank}.json")
    assert StallocConfig().cache_path() == tmp_path
    assert StallocConfig(cache_dir="~/plans").cache_path() == Path("~/plans").expanduser()
    assert StallocConfig().summary_path(3) == Path("summary-3.json")
    assert StallocConfig(summary_file="a/{rank}/{x}.json").summary_path(0) == Path("a/0/{x}.json")
    monkeypatch.delenv("STALLOC_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert StallocConfig().cache_path() == tmp_path / "xdg" / "stalloc"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert StallocConfig().cache_path() == Path("~/.cache/stalloc").expanduser()


def test_every_field_is_documented_and_the_page_has_the_same_table():
    assert list(field_docs()) == list(StallocConfig.__dataclass_fields__)
    assert keys_table() in PAGE.read_text(), "copy the output of stalloc_accel.config.keys_table() into the page"
