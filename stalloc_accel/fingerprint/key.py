"""Flat, readable, repeatable fields, and the key that is made of them."""

from __future__ import annotations

import dataclasses
import enum
import functools
import hashlib
import json
import math
import numbers
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import PurePath
from types import MappingProxyType
from typing import Any, TypeVar

Fields = dict[str, Any]  # dotted name -> what JSON can hold, scalars as a rule
Result = TypeVar("Result")

DIGEST_LENGTH = 32
DIGEST_PATTERN = re.compile(r"[0-9a-f]{32}", re.ASCII)

# What names a thing or a place and never changes an allocation. A key must not depend on where a run keeps its files.
_COSMETIC = frozenset({
    "_commit_hash", "_name_or_path", "name_or_path", "architectures", "base_model_name_or_path", "id2label", "label2id",
    "revision", "transformers_version", "peft_version", "task_specific_params", "seed", "port", "master_port", "hostfile",
})
_COSMETIC_ENDS = ("_token_id", "_token_ids", "_path", "_dir", "_file", "_folder", "_url")
_MAX_DEPTH = 12


@dataclasses.dataclass(frozen=True)
class Key:
    """The fields of a run, sorted by name, and the digest that names its files. Equal digests are equal keys."""

    fields: Mapping[str, Any] = dataclasses.field(compare=False)
    digest: str

    def to_json(self) -> str:
        return canonical_json(dict(self.fields))


def make_key(*field_maps: Mapping[str, Any]) -> Key:
    """Joins the maps; of one name given twice, the later value counts."""
    joined: Fields = {}
    for fields in field_maps:
        joined.update(fields)
    # A round trip through JSON, so that a key that was just made equals the same key read from a file.
    text = canonical_json(joined)
    fields = MappingProxyType(json.loads(text))
    return Key(fields=fields, digest=hashlib.sha256(text.encode()).hexdigest()[:DIGEST_LENGTH])


def explain(a: Key, b: Key) -> list[str]:
    """One line for each field that differs, `name: value in a -> value in b`; empty for equal keys."""
    lines = []
    for name in sorted({*a.fields, *b.fields}):
        if name not in a.fields:
            lines.append(f"{name}: (not set) -> {_shown(b.fields[name])}")
        elif name not in b.fields:
            lines.append(f"{name}: {_shown(a.fields[name])} -> (not set)")
        elif canonical_json(a.fields[name]) != canonical_json(b.fields[name]):  # 1, 1.0 and true differ
            lines.append(f"{name}: {_shown(a.fields[name])} -> {_shown(b.fields[name])}")
    return lines


def canonical_json(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def digest_of(lines: Iterable[str]) -> str:
    """Stands for a list that is too long to be read in a key."""
    state = hashlib.sha256()
    for line in lines:
        state.update(line.encode("utf-8", "surrogatepass") + b"\n")
    return f"sha256:{state.hexdigest()[:16]}"


def read(source: Callable[[], Result]) -> Result | None:
    """The value, or None where this version of a host does not have it.

    Host attributes come and go between versions, and some properties raise when a feature is unused. What cannot be
    read now cannot be read in the next run either, so leaving it out keeps the key repeatable.
    """
    try:
        return source()
    except (AttributeError, KeyError, TypeError, ValueError, AssertionError, RuntimeError, NotImplementedError):
        return None


def flatten(prefix: str, value: Any) -> Fields:
    """Nested settings as `prefix.name.name` fields, without cosmetic entries and without anything that has an address."""
    fields: Fields = {}
    _flatten_into(fields, prefix, value, 0)
    return fields


def _flatten_into(fields: Fields, name: str, value: Any, depth: int) -> None:
    nested = _as_mapping(value) if depth < _MAX_DEPTH else None
    if nested is None:
        fields[name] = _plain(value)
        return
    for key, item in nested.items():
        key = str(key)
        if key not in _COSMETIC and not key.endswith(_COSMETIC_ENDS):
            _flatten_into(fields, f"{name}.{key}", item, depth + 1)


def _as_mapping(value: Any) -> Mapping[Any, Any] | None:
    if isinstance(value, Mapping):
        return value
    if isinstance(value, type):
        return None
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name, None) for field in dataclasses.fields(value)}
    if callable(dump := getattr(value, "model_dump", None)):  # pydantic
        return read(dump)
    if isinstance(value, functools.partial):
        return {"function": value.func, **value.keywords}
    if callable(convert := getattr(value, "to_dict", None)):  # Hugging Face configurations
        converted = read(convert)
        return converted if isinstance(converted, Mapping) else None
    return None


def _plain(value: Any) -> Any:
    """A JSON value that reads the same in every process."""
    if isinstance(value, enum.Enum):  # before str and int, which an enum may also be
        return value.name
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        number = float(value)
        return number if math.isfinite(number) else str(number)
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted((_plain(item) for item in value), key=canonical_json)
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, PurePath):
        return value.name
    return _name_of(value)


def _name_of(value: Any) -> str:
    kind = type(value)
    # dtype, layout and memory format print as names; a device as its kind, since its index changes with the rank.
    if kind.__module__.split(".")[0] == "torch":
        if kind.__name__ in ("dtype", "layout", "memory_format", "Size"):
            return str(value).removeprefix("torch.")
        if kind.__name__ == "device":
            return str(value.type)
    named = value if hasattr(value, "__qualname__") else kind
    return f"{named.__module__}.{named.__qualname__}"


def _shown(value: Any) -> str:
    text = json.dumps(value, sort_keys=True)
    return text if len(text) <= 200 else text[:197] + "..."
