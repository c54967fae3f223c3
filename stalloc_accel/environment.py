"""The one place that reads environment variables. Imports nothing heavy: it runs inside `import torch`.

Every key of the configuration can be given as STALLOC_<KEY>, in the weakest of the four sources. The other
variables are listed in `OTHER_VARIABLES`.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from stalloc_accel.errors import ConfigError, describe

PREFIX = "STALLOC_"

OTHER_VARIABLES: dict[str, str] = {
    "STALLOC_CONFIG": "the section of an Accelerate YAML as one token, set by the launcher for its ranks",
    "STALLOC_CONFIG_SOURCE": "the file that STALLOC_CONFIG was read from, for messages",
    "STALLOC_DISABLE": "1 turns everything off but the acceptance of the section, so that no file needs an edit",
    "STALLOC_EXTENSION_DIR": "where the part built for the installed torch is kept (default: ~/.cache/stalloc/extensions)",
    "STALLOC_DEBUG": "1 checks invariants after each change and poisons freed ranges; slow",
}

_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off"})


def _as_text(name: str, text: str) -> str:
    return text


def _as_flag(name: str, text: str) -> bool:
    word = text.strip().lower()
    if word in _TRUE:
        return True
    if word in _FALSE:
        return False
    raise ConfigError(describe("environment", name, text, "must be 1 or 0", "Set it to 1 or 0, or unset it."))


def _as_number(name: str, text: str) -> int | float | str:
    # What is no number stays text: the configuration knows which words a key takes and says so.
    for convert in (int, float):
        try:
            return convert(text)
        except ValueError:
            continue
    return text.strip()


_PARSERS: dict[str, Callable[[str, str], Any]] = {
    "enabled": _as_flag,
    "profile_steps": _as_number,
    "skip_steps": _as_number,
    "cache_dir": _as_text,
    "cache": _as_text,
    "max_arena": _as_number,
    "max_length": _as_number,
    "dynamic": _as_text,
    "handover": _as_text,
    "expandable_segments": _as_text,
    "backend": _as_text,
    "summary_file": _as_text,
    "log_level": _as_text,
}

CONFIG_KEYS = tuple(_PARSERS)


def variable_of(key: str) -> str:
    """The environment variable of a configuration key: "cache_dir" -> "STALLOC_CACHE_DIR"."""
    return PREFIX + key.upper()


def section(environ: Mapping[str, str] | None = None) -> dict[str, Any]:
    """The configuration keys that are set in the environment. An empty variable counts as unset.

    Raises ConfigError for a flag that is neither 1 nor 0; other values are checked with the configuration.
    """
    environ = os.environ if environ is None else environ
    found = {}
    for key, parse in _PARSERS.items():
        text = environ.get(variable_of(key), "")
        if text.strip():
            found[key] = parse(variable_of(key), text)
    return found


def unknown_variables(environ: Mapping[str, str] | None = None) -> list[str]:
    """One warning for each STALLOC_* variable that nothing reads, with the nearest one that exists."""
    environ = os.environ if environ is None else environ
    known = [variable_of(key) for key in CONFIG_KEYS] + list(OTHER_VARIABLES)
    warnings = []
    for name in sorted(environ):
        if name.startswith(PREFIX) and name not in known:
            nearest = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
            remedy = f"Did you mean {nearest[0]}?" if nearest else "Unset it."
            warnings.append(describe("environment", name, environ[name], "is read by nothing", remedy))
    return warnings


def is_disabled() -> bool:
    """STALLOC_DISABLE. A kill switch must not depend on spelling: every value but empty and 0/false/no/off counts."""
    word = os.environ.get("STALLOC_DISABLE", "").strip().lower()
    return bool(word) and word not in _FALSE


def is_enabled() -> bool:
    """STALLOC_ENABLED=1, the environment door. Raises ConfigError where it is neither 1 nor 0."""
    return bool(section().get("enabled", False))


def is_debug() -> bool:
    word = os.environ.get("STALLOC_DEBUG", "").strip().lower()
    return bool(word) and word not in _FALSE


def autoload_is_on() -> bool:
    """Whether torch loads entry points such as ours when it is imported; TORCH_DEVICE_BACKEND_AUTOLOAD=0 stops it."""
    return os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD", "1") == "1"


def config_token() -> str | None:
    return os.environ.get("STALLOC_CONFIG") or None


def config_source() -> str | None:
    return os.environ.get("STALLOC_CONFIG_SOURCE") or None


def cache_dir() -> Path:
    """Where plans are kept when the configuration names no directory: a folder of the user, never a shared one."""
    named = os.environ.get("STALLOC_CACHE_DIR", "")
    return Path(named).expanduser() if named.strip() else _user_cache_dir()


def extension_dir() -> Path:
    """Where built extensions are kept. Not below STALLOC_CACHE_DIR: that one follows the run, this one the machine."""
    named = os.environ.get("STALLOC_EXTENSION_DIR", "")
    return Path(named).expanduser() if named.strip() else _user_cache_dir() / "extensions"


def compiler() -> str:
    """The C++ compiler that the user names, as for any build."""
    return os.environ.get("CXX", "").strip() or "g++"


def cuda_home() -> Path | None:
    """The CUDA toolkit that the user names."""
    named = os.environ.get("CUDA_HOME", "").strip() or os.environ.get("CUDA_PATH", "").strip()
    return Path(named) if named else None


def _user_cache_dir() -> Path:
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG rule: a relative value is to be ignored.
    root = Path(base) if os.path.isabs(base) else Path("~/.cache").expanduser()
    return root / "stalloc"


def summary_file() -> str | None:
    return os.environ.get("STALLOC_SUMMARY_FILE", "").strip() or None


def _first_integer(names: tuple[str, ...], default: int) -> int:
    for name in names:
        text = os.environ.get(name, "")
        if text.strip().lstrip("-").isdigit():
            return int(text)
    return default


def rank() -> int:
    """This process's rank as its launcher tells it; 0 without a launcher."""
    return _first_integer(("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"), 0)


def local_rank() -> int:
    return _first_integer(("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"), 0)


def world_size() -> int:
    return max(1, _first_integer(("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS"), 1))


def allocator_settings() -> dict[str, str]:
    """Variables of torch that change which allocations happen; all belong to a key."""
    names = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_NO_CUDA_MEMORY_CACHING",
             "CUBLAS_WORKSPACE_CONFIG", "CUDA_LAUNCH_BLOCKING", "CUDA_DEVICE_MAX_CONNECTIONS")
    return {name: os.environ[name] for name in names if os.environ.get(name)}


def launcher_settings() -> dict[str, str]:
    """What a launcher tells its ranks about the run: Accelerate's own variables, without addresses and ports."""
    prefixes = ("ACCELERATE_", "FSDP_", "PARALLELISM_CONFIG_", "MEGATRON_LM_")
    return {name: value for name, value in sorted(os.environ.items()) if name.startswith(prefixes)}


def num_visible_devices() -> int | None:
    """How many devices CUDA_VISIBLE_DEVICES names; None where it is not set. Which ones they are does not matter."""
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    return None if listed is None else len([part for part in listed.split(",") if part.strip()])
