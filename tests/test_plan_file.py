"""Plan files: what is written comes back, anything may read it, and nothing but a whole and honest file is accepted."""

from __future__ import annotations

import builtins
import json
import re
import struct
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import safetensors
from hypothesis import given, settings
from hypothesis import strategies as st
from stored_plans import are_equal, key_of, plan_of

from stalloc_accel import plan_file
from stalloc_accel.errors import PlanFileError
from stalloc_accel.fingerprint import make_key

KEY = key_of()
PLAN = plan_of()
DATA = plan_file.encode(KEY, PLAN, {"seconds": 0.25, "note": "é\u2028\ud800", "nested": {"list": [1, None]}})
PAGE = Path(__file__).parent.parent / "docs" / "plan-file.md"


def split(data: bytes) -> tuple[dict, bytes]:
    (length,) = struct.unpack("<Q", data[:8])
    return json.loads(data[8:8 + length]), data[8 + length:]


def join(header: dict | str, arrays: bytes) -> bytes:
    text = header.encode() if isinstance(header, str) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + arrays


def with_new_checksum(header: dict, arrays: bytes) -> bytes:
    """A file that a forger made: everything about it is consistent but what the test changed."""
    parts = {name: arrays[slice(*header[name]["data_offsets"])] for name in plan_file.ARRAYS}
    header["__metadata__"]["sha256"] = plan_file.checksum(header["__metadata__"], parts)
    return join(header, arrays)


def refusal_of(data: bytes, digest: str = KEY.digest) -> str:
    with pytest.raises(PlanFileError) as caught:
        plan_file.decode(data, digest)
    return str(caught.value)


def test_what_is_written_comes_back():
    stored = plan_file.decode(DATA, KEY.digest)
    assert stored.key == KEY and dict(stored.key.fields) == dict(KEY.fields)
    assert are_equal(stored.plan, PLAN)
    assert stored.facts == {"seconds": 0.25, "note": "é\u2028\ud800", "nested": {"list": [1, None]}}


def test_the_arrays_that_come_back_are_aligned_and_writable():
    for value in plan_file.decode(DATA, KEY.digest).plan.values():
        if isinstance(value, np.ndarray):
            assert value.flags.aligned and value.flags.writeable and value.flags.owndata


def test_plain_safetensors_reads_the_file(tmp_path):
    path = tmp_path / "plan.safetensors"
    path.write_bytes(DATA)
    with safetensors.safe_open(path, "numpy") as file:
        assert all(np.array_equal(file.get_tensor(name), PLAN[name], equal_nan=name in ("slot_base", "slot_slope"))
                   for name in plan_file.ARRAYS)
        assert json.loads(file.metadata()["key"]) == dict(KEY.fields)


@pytest.mark.parametrize("num_bytes", [0, 1, 7, 8, 9, 100, len(DATA) // 2, len(DATA) - 1])
def test_a_truncated_file_is_refused(num_bytes):
    refusal_of(DATA[:num_bytes])


def test_a_file_with_more_at_its_end_is_refused():
    refusal_of(DATA + b"\0")


@settings(max_examples=300, deadline=None)
@given(st.integers(0, len(DATA) - 1), st.integers(1, 255))
def test_a_single_changed_byte_is_refused_or_changes_nothing(position, change):
    damaged = bytearray(DATA)
    damaged[position] ^= change
    try:
        stored = plan_file.decode(bytes(damaged), KEY.digest)
    except PlanFileError:
        return
    # White space in the header may change; what it says may not.
    assert stored.key == KEY and are_equal(stored.plan, PLAN)
    assert stored.facts == plan_file.decode(DATA, KEY.digest).facts


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=300))
def test_garbage_is_refused(data):
    refusal_of(data)
    refusal_of(struct.pack("<Q", len(data)) + data)


@pytest.mark.parametrize("length", [0, 1, 1 << 32, (1 << 63) - 1, 1 << 63, (1 << 64) - 1])
def test_a_header_length_that_lies_is_refused(length):
    assert "header bytes" in refusal_of(struct.pack("<Q", length) + DATA[8:])


@pytest.mark.parametrize("text", [
    "[" * 100_000, '{"a":' * 100_000, "[]", "null", "{}", '{"__metadata__": []}', '{"__metadata__": {"format": 1}}',
    '{"a": 1, "a": 1}', '{"a": NaN}', '{"a": 1e999}', "1" * 10_000, '{"a": %s}' % ("9" * 9_999), "\ufeff{}", '{"a": "\\ud8',
])
def test_a_hostile_header_is_refused_in_one_line(text):
    message = refusal_of(join(text, b""))
    assert message.startswith("plan file: ") and "\n" not in message and len(message) < 500


def test_a_deep_key_is_refused():
    header, arrays = split(DATA)
    header["__metadata__"]["key"] = '{"a":' * 20 + "1" + "}" * 20
    assert "levels" in refusal_of(join(header, arrays))


def test_a_file_of_another_key_is_refused():
    assert "must be that of its name" in refusal_of(DATA, key_of(other=1).digest)


@pytest.mark.parametrize(("name", "value"), [("format", "other"), ("format_version", str(plan_file.FORMAT_VERSION + 1)), ("format_version", "1"),
                                             ("format_version", "0")])
def test_another_format_or_version_is_refused_by_name(name, value):
    header, arrays = split(DATA)
    header["__metadata__"][name] = value
    assert refusal_of(with_new_checksum(header, arrays)).startswith(f"plan file: {name}='{value}', must be ")


def test_a_key_whose_digest_is_not_its_own_is_refused():
    header, arrays = split(DATA)
    header["__metadata__"]["key"] = key_of(forged=True).to_json()
    assert "digest" in refusal_of(with_new_checksum(header, arrays))


@pytest.mark.parametrize(("name", "entry"), [
    ("slot_size", {"dtype": "F32"}), ("slot_size", {"dtype": 5}), ("slot_size", {"shape": [1 << 60]}),
    ("slot_size", {"shape": [-1]}), ("slot_size", {"shape": []}), ("slot_size", {"shape": [1, 50]}),
    ("slot_size", {"shape": [True]}), ("slot_size", {"shape": 50}), ("slot_size", {"data_offsets": [0, 1 << 62]}),
    ("slot_size", {"data_offsets": [-8, 392]}), ("slot_size", {"data_offsets": [400, 0]}), ("slot_size", {"extra": 1}),
    ("slot_size", {"data_offsets": [0.0, 400.0]}),
])
def test_an_array_that_is_described_wrongly_is_refused(name, entry):
    header, arrays = split(DATA)
    header[name].update(entry)
    refusal_of(join(header, arrays))


def test_missing_additional_and_overlapping_arrays_are_refused():
    header, arrays = split(DATA)
    refusal_of(join({name: entry for name, entry in header.items() if name != "slot_kind"}, arrays))
    refusal_of(join({**header, "more": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}}, arrays))
    refusal_of(join({**header, "slot_offset": header["slot_size"]}, arrays))


@pytest.mark.parametrize("change", [{"num_roles": 2}, {"num_period": 1 << 40}, {"num_roles": -1}, {"num_roles": 1.0},
                                    {"num_roles": True}, {"more": 1}, {"num_prologue": 1 << 62}])
def test_numbers_that_contradict_the_arrays_are_refused(change):
    header, arrays = split(DATA)
    numbers = {**json.loads(header["__metadata__"]["numbers"]), **change}
    header["__metadata__"]["numbers"] = json.dumps(numbers)
    refusal_of(with_new_checksum(header, arrays))


@pytest.mark.parametrize(("name", "value"), [
    ("slot_offset", 0), ("slot_size", 0), ("slot_size", -512), ("slot_size", 100), ("slot_size", 1 << 60), ("slot_kind", 9),
    ("slot_role", 7), ("slot_role", -1), ("slot_birth", -1), ("slot_death", 0), ("table_slots", 1 << 30),
    ("table_slots", -1), ("table_begin", -5), ("arena_bytes", 1 << 60), ("arena_bytes", -512), ("arena_bytes", 3),
])
def test_a_forged_plan_that_breaks_a_rule_of_the_engine_is_refused(name, value):
    forged = {**PLAN, name: np.full_like(PLAN[name], value)}
    refusal_of(plan_file.encode(KEY, forged, {}))


def test_a_plan_is_refused_where_the_engine_is_missing(monkeypatch):
    real_import = builtins.__import__

    def without_core(name, globals=None, locals=None, fromlist=(), level=0):
        if name == "stalloc_accel" and "_core" in (fromlist or ()):
            raise ImportError("no engine here")
        return real_import(name, globals, locals, fromlist, level)

    monkeypatch.setattr(builtins, "__import__", without_core)
    assert "is needed to check a plan" in refusal_of(DATA)


def test_a_huge_claim_costs_neither_memory_nor_time():
    header, arrays = split(DATA)
    for name in plan_file.ARRAYS:
        header[name]["shape"] = [1 << 40]
    data = join(header, arrays)
    started = time.process_time()
    tracemalloc.start()
    refusal_of(data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 << 20 and time.process_time() - started < 1.0


def test_no_path_in_a_file_is_opened(monkeypatch):
    header, arrays = split(DATA)
    fields = {"launch.script": "/etc/passwd", "model.config": "../../secret"}
    key = make_key(fields)
    header["__metadata__"].update(key=key.to_json(), digest=key.digest, facts=json.dumps({"path": "/etc/shadow"}))
    data = with_new_checksum(header, arrays)
    plan_file.decode(data, key.digest)  # imports what is imported late

    def refuse(*args, **kwargs):
        raise AssertionError(f"opened {args[0]}")

    monkeypatch.setattr(builtins, "open", refuse)
    monkeypatch.setattr("os.open", refuse)
    assert plan_file.decode(data, key.digest).facts == {"path": "/etc/shadow"}


@pytest.mark.parametrize("change", [{"slot_size": None}, {"more": 1}, {"slot_size": PLAN["slot_size"].astype(np.int32)},
                                    {"slot_size": PLAN["slot_size"].reshape(-1, 1)}])
def test_a_plan_that_is_not_of_the_format_is_not_written(change):
    plan = {name: value for name, value in {**PLAN, **change}.items() if value is not None}
    with pytest.raises(PlanFileError):
        plan_file.encode(KEY, plan, {})


def test_a_hundred_thousand_slots_are_read_within_a_second():
    plan = plan_of(num_blocks=100_000)
    data = plan_file.encode(KEY, plan, {})
    started = time.process_time()
    stored = plan_file.decode(data, KEY.digest)
    assert time.process_time() - started < 1.0
    assert are_equal(stored.plan, plan)


def test_the_specification_lists_the_arrays_the_numbers_and_the_limits():
    page = PAGE.read_text()
    rows = dict(re.findall(r"^\| `(\w+)` \| (I64|I32|U8|F64) \|", page, re.MULTILINE))
    assert rows == plan_file.ARRAYS
    assert all(f"`{name}`" in page for name in plan_file.NUMBERS)
    assert f"format_version` is `{plan_file.FORMAT_VERSION}`" in page
    for limit in (plan_file.MAX_FILE_BYTES, plan_file.MAX_HEADER_BYTES):
        assert f"{limit >> 20} MiB" in page
