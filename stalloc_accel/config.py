"""The configuration: one frozen dataclass, its checks, and the merge of the places that can set it.

Imports nothing heavy: it runs inside `import torch` and in launchers.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import difflib
import enum
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stalloc_accel import environment
from stalloc_accel.errors import ConfigError, describe

SECTION = "stalloc"
MIN_ARENA_BYTES = 1 << 20
MAX_STEPS = 1000
MAX_LENGTH = 1 << 31


class Source(enum.IntEnum):
    """Where a section was found. The larger one wins, key by key."""

    ENVIRONMENT = 0
    YAML = 1
    DEEPSPEED = 2
    CODE = 3

    @property
    def label(self) -> str:
        return {0: "environment", 1: "Accelerate YAML", 2: "DeepSpeed JSON", 3: "code"}[int(self)]


@dataclasses.dataclass(frozen=True, kw_only=True)
class StallocConfig:
    """The settings of a run. Construction checks every value and raises ConfigError."""

    enabled: bool = True
    """Whether a run is recorded, planned and served. A section that is there asks for it, so true; false keeps the
    section and does nothing."""

    profile_steps: int = 2
    """Optimizer steps recorded for the plan, at least 1. Two show what changes from step to step (lengths, routing);
    more help where lengths vary widely."""

    skip_steps: int = 1
    """Optimizer steps before recording for the plan starts, at least 0. The first one differs from the rest: optimizer
    states are born in it and ZeRO records its own trace."""

    cache_dir: str | None = None
    """Directory of the plan store. Not set: STALLOC_CACHE_DIR, else `stalloc` in the user's cache directory. It must
    belong to the user who runs; it is made with mode 0700."""

    cache: str = "readwrite"
    """`readwrite` finds and keeps plans, `readonly` only finds them, `off` does neither and every run profiles anew."""

    max_arena: str | int | float = "auto"
    """Most memory the arena may take on a device: `auto` (what the plan needs), bytes (at least 1 MiB, or text such as
    "8GiB"; units are B, KiB, MiB, GiB and TiB), or a fraction of the device's memory above 0 up to 1.0, written with a
    point. A plan that needs more is not used."""

    max_length: int | None = None
    """Longest sequence the run can meet, in tokens: memory for it is taken when the plan is activated, and not step by step
    as longer batches come. Needs a host that tells the number of samples in a batch (DeepSpeed, the Trainer, Accelerate) and
    steps that do not differ in the number of their allocations. Not set, or where that would take more than max_arena or 15/16 of
    the device: slots are laid out for the longest batch met so far and anew where a longer one comes, and the next run starts
    with room for that."""

    dynamic: str = "auto"
    """Runs whose steps differ in the number of their allocations (a loop over experts): `auto` plans what repeats and
    serves the rest from what that leaves idle where this, rehearsed on the recorded steps, needs less memory than torch's
    expandable segments; this run, which may meet longer batches, and the next one, which begins with room for the longest,
    are rehearsed and decided apart. `plan` does it in any case; `off` plans no such run, and expandable segments hold its
    memory. Served, such a run took 1.005 of its step time on an H200."""

    handover: str = "audited"
    """`audited` lets a stream reuse another one's memory, behind waits on the device, in hosts whose use of streams was
    audited (DeepSpeed 0.19.8, ZeRO): 3 to 15% less memory, from the plan's first step on. All other programs keep every range with
    its stream, as `none` does everywhere."""

    expandable_segments: str = "auto"
    """`auto` lets torch take expandable segments while the first steps are recorded, and for the whole of a run that
    cannot be planned: they hold less memory than torch's default. Not where the program has set expandable_segments
    itself, opens a memory pool or captures a graph, on MIG instances, or where the system forbids sharing such memory
    between processes. `off` never touches torch's setting."""

    backend: str = "auto"
    """Which allocator is served: `cuda`, `cpu`, or `auto` (cuda where there is a device, else cpu)."""

    summary_file: str | None = None
    """File to which each rank writes its figures as JSON at the end; `{rank}` in the name is replaced. Not set:
    STALLOC_SUMMARY_FILE, else none."""

    log_level: str = "info"
    """Least level of our messages that is shown: `debug`, `info`, `warning` or `error`."""

    def __post_init__(self) -> None:
        for key, value in _checked_section(self.__dict__, "configuration").items():
            object.__setattr__(self, key, value)

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any], source: str) -> StallocConfig:
        """Checks a section. `source` (a file name, "code") is named in the ConfigError of a bad key or value."""
        return cls(**_checked_section(mapping, source))

    @classmethod
    def from_token(cls, token: str) -> StallocConfig:
        return cls.from_mapping(section_from_token(token), environment.config_source() or "STALLOC_CONFIG")

    def to_token(self) -> str:
        return section_token(self.to_mapping())

    def to_mapping(self) -> dict[str, Any]:
        """The keys that differ from their defaults, in the order of the fields."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if getattr(self, f.name) != f.default}

    def cache_path(self) -> Path:
        """The plan store's directory; it need not exist."""
        return Path(self.cache_dir).expanduser() if self.cache_dir else environment.cache_dir()

    def summary_path(self, rank: int) -> Path | None:
        named = self.summary_file or environment.summary_file()
        return Path(named.replace("{rank}", str(rank))).expanduser() if named else None

    def max_arena_bytes(self, device_bytes: int) -> int | None:
        """The limit on a device of `device_bytes`; None for "auto"."""
        if isinstance(self.max_arena, str):
            return None
        return int(self.max_arena * device_bytes) if isinstance(self.max_arena, float) else self.max_arena


def merge(sections: Sequence[tuple[Source, Mapping[str, Any]]]) -> tuple[StallocConfig, list[str]]:
    """Joins the sections key by key, the strongest source first, and tells each disagreement in one line.

    Every section is checked whole, also where it is overruled. Of one source given twice, the later section wins.
    """
    chosen: dict[str, tuple[Any, Source]] = {}
    conflicts = []
    for source, section in sorted(sections, key=lambda item: item[0]):
        for key, value in _checked_section(section, source.label).items():
            weaker, loser = chosen.get(key, (value, source))
            if weaker != value:
                conflicts.append(describe("configuration", key, value, f"from {source.label} is used",
                                          f"The value {weaker!r} from {loser.label} is ignored."))
            chosen[key] = (value, source)
    return StallocConfig(**{key: value for key, (value, _) in chosen.items()}), conflicts


def field_docs() -> dict[str, str]:
    """The text under each field of StallocConfig, on one line."""
    import ast
    import inspect

    (definition,) = ast.parse(inspect.getsource(StallocConfig)).body
    docs, name = {}, None
    for statement in definition.body:
        if isinstance(statement, ast.AnnAssign):
            name = statement.target.id
        elif isinstance(statement, ast.Expr) and name is not None:
            docs[name] = " ".join(ast.literal_eval(statement.value).split())
            name = None
    return docs


def keys_table() -> str:
    """The table of keys in docs/configuration.md."""
    docs = field_docs()
    lines = ["| key | default | environment | meaning |", "|---|---|---|---|"]
    for field in dataclasses.fields(StallocConfig):
        default = "not set" if field.default is None else f"`{json.dumps(field.default)}`"
        lines.append(f"| `{field.name}` | {default} | `{environment.variable_of(field.name)}` | {docs[field.name]} |")
    return "\n".join(lines) + "\n"


def section_token(section: Mapping[str, Any]) -> str:
    """A section as base64url text without blanks, which every launcher passes on in an environment variable."""
    return base64.urlsafe_b64encode(json.dumps(dict(section), sort_keys=True).encode()).decode()


def section_from_token(token: str) -> dict[str, Any]:
    """The section of a token, unchecked. Raises ConfigError where the text is no token."""
    try:
        section = json.loads(base64.b64decode(token.encode("ascii"), altchars=b"-_", validate=True))
    except (binascii.Error, ValueError, RecursionError) as error:
        raise ConfigError(describe("environment", "STALLOC_CONFIG", token, "must be a token written by a launcher",
                                   "Unset it.")) from error
    if not isinstance(section, dict):
        raise _not_a_section(section, "STALLOC_CONFIG")
    return section


def near_misses(mapping: Mapping[Any, Any]) -> list[str]:
    """One warning for each key of an outer mapping that was probably meant to be "stalloc"."""
    warnings = []
    for key in mapping:
        if not isinstance(key, str) or key == SECTION:
            continue
        word = re.sub(r"[^a-z]", "", key.lower())
        is_near = len(word) >= 6 and difflib.SequenceMatcher(None, word, SECTION).ratio() > 0.8
        if (is_near and word != "alloc") or word.startswith(SECTION):
            warnings.append(f'configuration: key "{key}" is not read. Did you mean "{SECTION}"?')
    return warnings


def _checked_section(section: Mapping[str, Any], source: str) -> dict[str, Any]:
    if not isinstance(section, Mapping):
        raise _not_a_section(section, source)
    return {key: _checked(key, value, source) for key, value in section.items()}


def _not_a_section(value: object, source: str) -> ConfigError:
    return ConfigError(describe(source, SECTION, value, "must be a section of keys and values",
                                f'Write {{"{SECTION}": {{"enabled": true}}}}.'))


def _checked(key: object, value: Any, source: str) -> Any:
    check = _CHECKS.get(key) if isinstance(key, str) else None
    if check is None:
        nearest = difflib.get_close_matches(str(key).lower().replace("-", "_"), _CHECKS, n=1, cutoff=0.5)
        remedy = f'Did you mean "{nearest[0]}"?' if nearest else f"The keys are {', '.join(_CHECKS)}."
        raise ConfigError(describe(source, str(key), value, "no such key", remedy))
    try:
        return check(value)
    except _Refused as refusal:
        rule, remedy = refusal.args
        if value == "auto":
            rule = f'{rule}; "auto" has no meaning here'
        default = StallocConfig.__dataclass_fields__[key].default
        fallback = f"Leave the key out for {'none' if default is None else json.dumps(default)}."
        raise ConfigError(describe(source, key, value, rule, remedy or fallback)) from None


class _Refused(Exception):
    """Carries (rule, remedy) from a check to the one place that knows key and source."""


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise _Refused("must be true or false", "")
    return value


def _integer(least: int, most: int, may_be_unset: bool = False) -> Any:
    def check(value: Any) -> int | None:
        if value is None and may_be_unset:
            return None
        # A bool is an int in Python; in a configuration it is a mistake.
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise _Refused(f"must be an integer from {least} to {most}", "")
        return value
    return check


def _choice(*words: str) -> Any:
    def check(value: Any) -> str:
        if value is False and "off" in words:
            return "off"  # YAML 1.1 reads a bare `off` as false
        if value not in words or not isinstance(value, str):
            nearest = difflib.get_close_matches(str(value).lower(), words, n=1, cutoff=0.6)
            raise _Refused(f"must be one of {', '.join(words)}", f'Did you mean "{nearest[0]}"?' if nearest else "")
        return value
    return check


def _path(value: Any) -> str | None:
    if value is None:
        return None
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if not isinstance(value, str) or not value.strip() or "\0" in value or value == "auto":
        raise _Refused("must be a path", "")
    return value


_UNITS = {"B": 0, "KIB": 10, "MIB": 20, "GIB": 30, "TIB": 40}
_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,9})?)\s*(B|KIB|MIB|GIB|TIB)", re.IGNORECASE | re.ASCII)


def _arena(value: Any) -> str | int | float:
    rule = f'must be "auto", at least {MIN_ARENA_BYTES} bytes, or a fraction above 0 up to 1.0'
    remedy = 'Write for instance "auto", "8GiB" or 0.8.'
    if value == "auto" and isinstance(value, str):
        return value
    if isinstance(value, str) and (match := _SIZE.fullmatch(value.strip())):
        value = int(float(match[1]) * (1 << _UNITS[match[2].upper()]))
    if isinstance(value, float) and 0 < value <= 1:
        return value
    if isinstance(value, int) and not isinstance(value, bool) and MIN_ARENA_BYTES <= value < 1 << 62:
        return value
    raise _Refused(rule, remedy)


_CHECKS: dict[str, Any] = {
    "enabled": _flag,
    "profile_steps": _integer(1, MAX_STEPS),
    "skip_steps": _integer(0, MAX_STEPS),
    "cache_dir": _path,
    "cache": _choice("readwrite", "readonly", "off"),
    "max_arena": _arena,
    "max_length": _integer(1, MAX_LENGTH, may_be_unset=True),
    "dynamic": _choice("auto", "plan", "off"),
    "handover": _choice("none", "audited"),
    "expandable_segments": _choice("auto", "off"),
    "backend": _choice("auto", "cuda", "cpu"),
    "summary_file": _path,
    "log_level": _choice("debug", "info", "warning", "error"),
}
