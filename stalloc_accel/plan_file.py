"""The bytes of a plan file: a safetensors file with the plan's arrays and, as metadata, its key and facts.

docs/plan-file.md is the specification. A file is hostile until `decode` has returned: its size is bounded, its header
is matched against the one schema below before any array is made, and the engine checks the plan itself.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import struct
from collections.abc import Mapping
from typing import Any

from stalloc_accel.errors import PlanFileError, describe
from stalloc_accel.fingerprint.key import Key, canonical_json, make_key

FORMAT = "stalloc-plan"
FORMAT_VERSION = 2
MAX_FILE_BYTES = 256 << 20
MAX_HEADER_BYTES = 2 << 20
MAX_JSON_DEPTH = 16

# name -> safetensors dtype; every array is one-dimensional. Their lengths follow from the numbers and from each other.
ARRAYS: dict[str, str] = {
    "slot_size": "I64", "slot_offset": "I64", "slot_birth": "I64", "slot_death": "I64", "slot_role": "I32",
    "slot_kind": "U8", "slot_base": "F64", "slot_slope": "F64", "slot_variable": "I32", "slot_defines": "U8",
    "variable_bytes": "I64", "table_slots": "I32", "table_begin": "I64", "role_space": "I32", "arena_bytes": "I64",
    "lower_bound_bytes": "I64",
}
NUMBERS = ("num_roles", "num_prologue", "num_period", "window_begin", "window_end")
_NUMPY_TYPES = {"I64": "<i8", "I32": "<i4", "U8": "|u1", "F64": "<f8"}
_ITEM_BYTES = {"I64": 8, "I32": 4, "U8": 1, "F64": 8}
_METADATA = frozenset({"format", "format_version", "digest", "key", "numbers", "facts", "sha256"})

Plan = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class StoredPlan:
    key: Key
    plan: Plan
    facts: Mapping[str, Any]


@dataclasses.dataclass(frozen=True)
class Header:
    """What a file says about itself; nothing of it is proved until `decode` has seen the whole file."""

    key: Key
    numbers: Mapping[str, int]
    facts: Mapping[str, Any]
    metadata: Mapping[str, str]  # as it stands in the file
    spans: Mapping[str, tuple[int, int]]  # array name -> [begin, end) in the data
    num_bytes: int  # of length field and header together


def encode(key: Key, plan: Mapping[str, Any], facts: Mapping[str, Any]) -> bytes:
    """Raises PlanFileError where the plan lacks an entry, has one too many, or is larger than a file may be."""
    from safetensors.numpy import save

    if set(plan) != {*ARRAYS, *NUMBERS}:
        odd = sorted(set(plan) ^ {*ARRAYS, *NUMBERS})
        raise _refusal("plan", odd, "must have the entries of the format, no more and no fewer", "Report it.")
    arrays = {name: _array_of(plan, name) for name in ARRAYS}
    num_bytes = sum(array.nbytes for array in arrays.values())
    if num_bytes > MAX_FILE_BYTES - MAX_HEADER_BYTES:
        raise _refusal("plan bytes", num_bytes, f"must be at most {MAX_FILE_BYTES - MAX_HEADER_BYTES}", "It is not kept.")
    metadata = {
        "format": FORMAT, "format_version": str(FORMAT_VERSION), "digest": key.digest, "key": key.to_json(),
        "numbers": canonical_json({name: int(plan[name]) for name in NUMBERS}), "facts": canonical_json(dict(facts)),
    }
    metadata["sha256"] = checksum(metadata, {name: array.data for name, array in arrays.items()})
    data = save(arrays, metadata)
    header = decode_header(data, len(data))
    if header.key.digest != key.digest:
        raise _refusal("key", key.digest, "must be the digest of its fields", "Make it with make_key.")
    return data


def decode(data: bytes, digest: str) -> StoredPlan:
    """The plan of a file that is named by `digest`. Raises PlanFileError for whatever must not be used."""
    header = decode_header(data, len(data))
    if header.key.digest != digest:
        raise _refusal("key", header.key.digest, f"must be that of its name, {digest}")
    view = memoryview(data)[header.num_bytes:]
    parts = {name: view[begin:end] for name, (begin, end) in header.spans.items()}
    if checksum(header.metadata, parts) != header.metadata["sha256"]:
        raise _refusal("sha256", header.metadata["sha256"], "must be that of the contents: the file is damaged")
    import numpy

    plan: Plan = dict(header.numbers)
    for name, kind in ARRAYS.items():
        # Copied, so that the arrays are aligned and own their memory.
        plan[name] = numpy.frombuffer(parts[name], dtype=_NUMPY_TYPES[kind]).copy()
    check(plan)
    return StoredPlan(header.key, plan, header.facts)


def check(plan: Plan) -> None:
    """The engine's own check: no two live slots share a byte. Without the engine no plan is trusted."""
    try:
        from stalloc_accel import _core
    except ImportError as error:
        raise _refusal("engine", str(error), "is needed to check a plan", "Install stalloc-accel with its extension.") from error
    try:
        _core.check_plan(plan)
    except ValueError as error:
        raise PlanFileError(str(error)) from error


def decode_header(data: bytes, file_bytes: int) -> Header:
    """The header of a file of `file_bytes`, of which `data` is at least the beginning up to the arrays."""
    if not 8 < file_bytes <= MAX_FILE_BYTES or len(data) < 8:
        raise _refusal("file bytes", file_bytes, f"must lie in [9, {MAX_FILE_BYTES}]")
    (num_header,) = struct.unpack("<Q", data[:8])
    if not 2 <= num_header <= min(MAX_HEADER_BYTES, file_bytes - 8, len(data) - 8):
        raise _refusal("header bytes", num_header, f"must lie in the file and be at most {MAX_HEADER_BYTES}")
    entries = parse_object(data[8:8 + num_header], "header")
    metadata = entries.pop("__metadata__", None)
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise _refusal("metadata", type(metadata).__name__, "must map names to text")
    # The version first: another version may have other entries.
    if metadata.get("format") != FORMAT:
        raise _refusal("format", metadata.get("format"), f"must be {FORMAT}")
    if metadata.get("format_version") != str(FORMAT_VERSION):
        raise _refusal("format_version", metadata.get("format_version"), f"must be {FORMAT_VERSION}")
    if set(metadata) != _METADATA:
        raise _refusal("metadata", sorted(set(metadata) ^ _METADATA), "must have the entries of the format")
    numbers = _numbers_of(metadata["numbers"])
    key = key_from(parse_object(metadata["key"], "key"), metadata["digest"])
    return Header(key, numbers, parse_object(metadata["facts"], "facts"), metadata,
                  _spans_of(entries, numbers, file_bytes - 8 - num_header), 8 + num_header)


def key_from(fields: Any, digest: Any) -> Key:
    """The key of fields that were read from a file, which says that `digest` is theirs."""
    if not isinstance(fields, dict):
        raise _refusal("fields", fields, "must map names to values")
    key = make_key(fields)
    if key.digest != digest:
        raise _refusal("digest", digest, f"must be that of the fields in the file, {key.digest}")
    return key


def _numbers_of(text: str) -> dict[str, int]:
    numbers = parse_object(text, "numbers")
    if set(numbers) != set(NUMBERS) or not all(type(value) is int and 0 <= value < 1 << 62 for value in numbers.values()):
        raise _refusal("numbers", text, f"must be the integers {', '.join(NUMBERS)}, none negative")
    return numbers


def _spans_of(entries: dict[str, Any], numbers: Mapping[str, int], data_bytes: int) -> dict[str, tuple[int, int]]:
    """Checks that the arrays are those of the format and cover the data without gap or overlap."""
    if set(entries) != set(ARRAYS):
        raise _refusal("arrays", sorted(set(entries) ^ set(ARRAYS)), "must be those of the format")
    spans, lengths = {}, {}
    for name, kind in ARRAYS.items():
        entry = entries[name]
        if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"} or entry["dtype"] != kind:
            raise _refusal(name, entry, f"must be a description of {kind}")
        shape, offsets = entry["shape"], entry["data_offsets"]
        if not _are_integers(shape, 1) or not _are_integers(offsets, 2):
            raise _refusal(name, entry, "must have one extent and two offsets")
        begin, end = offsets
        if not 0 <= begin <= end <= data_bytes or end - begin != shape[0] * _ITEM_BYTES[kind]:
            raise _refusal(name, entry, "must lie in the file and be as long as it says")
        spans[name], lengths[name] = (begin, end), shape[0]
    position = 0
    for begin, end in sorted(spans.values()):
        if begin != position:
            raise _refusal("data offset", begin, f"must be {position}: arrays lie side by side")
        position = end
    if position != data_bytes:
        raise _refusal("data bytes", data_bytes, f"must be {position}, the arrays' sum")
    _check_lengths(lengths, numbers)
    return spans


def _check_lengths(lengths: Mapping[str, int], numbers: Mapping[str, int]) -> None:
    expected = dict.fromkeys((name for name in ARRAYS if name.startswith("slot_")), lengths["slot_size"])
    expected["role_space"] = expected["arena_bytes"] = expected["lower_bound_bytes"] = numbers["num_roles"]
    expected["table_begin"] = (numbers["num_prologue"] + numbers["num_period"]) * numbers["num_roles"] + 1
    for name, length in expected.items():
        if lengths[name] != length:
            raise _refusal(f"length of {name}", lengths[name], f"must be {length}")


def _are_integers(values: Any, count: int) -> bool:
    return isinstance(values, list) and len(values) == count and all(type(value) is int and value >= 0 for value in values)


def _array_of(plan: Mapping[str, Any], name: str) -> Any:
    import numpy

    array = numpy.asarray(plan[name])
    wanted = numpy.dtype(_NUMPY_TYPES[ARRAYS[name]])
    if array.ndim != 1 or array.dtype != wanted:
        raise _refusal(name, f"{array.dtype}{list(array.shape)}", f"must be a one-dimensional array of {wanted}", "Report it.")
    return numpy.ascontiguousarray(array)


def checksum(metadata: Mapping[str, str], parts: Mapping[str, Any]) -> str:
    """Over the metadata without the checksum itself, then over the arrays' bytes in the order of ARRAYS."""
    state = hashlib.sha256(canonical_json({name: text for name, text in metadata.items() if name != "sha256"}).encode())
    for name in ARRAYS:
        state.update(parts[name])
    return state.hexdigest()


def parse_object(text: str | bytes, what: str) -> dict[str, Any]:
    """A JSON object of bounded depth, without repeated names and with finite numbers."""
    try:
        value = json.loads(text, object_pairs_hook=_without_repeats, parse_constant=_finite, parse_float=_finite)
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError is a ValueError
        raise _refusal(what, str(error), "must be JSON") from error
    if not isinstance(value, dict) or _depth_of(value) > MAX_JSON_DEPTH:
        raise _refusal(what, type(value).__name__, f"must be a JSON object of at most {MAX_JSON_DEPTH} levels")
    return value


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name is given twice")
    return found


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is no finite number")
    return number


def _depth_of(value: Any) -> int:
    depth, level = 0, [value]
    while level:
        depth += 1
        level = [child for item in level if isinstance(item, (dict, list))
                 for child in (item.values() if isinstance(item, dict) else item)]
    return depth


def _refusal(name: str, value: object, rule: str, remedy: str = "It is ignored; a new one is made.") -> PlanFileError:
    return PlanFileError(describe("plan file", name, value, rule, remedy))
