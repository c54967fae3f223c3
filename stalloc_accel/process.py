"""What kind of process this is, told from its command line alone: only a rank may load the allocator at start-up.

Runs inside `import torch`, where `sys.argv[0]` may still be "-m"; `sys.orig_argv` is what the interpreter was given.
"""

from __future__ import annotations

import enum
import functools
import os
import sys
from collections.abc import Sequence


class Role(enum.Enum):
    LAUNCHER = "launcher"
    """Starts ranks and trains nothing: accelerate, torchrun, deepspeed, and our own command line."""

    COMPILE_WORKER = "compile worker"
    """A helper of torch.compile, which never sees a tensor of the training."""

    SPAWN_CHILD = "spawn child"
    """A child of multiprocessing: a data loader's worker more often than a rank, so it waits until a host is used."""

    RANK = "rank"
    """Everything else: a process that may train."""


_LAUNCHER_SCRIPTS = frozenset({
    "accelerate", "accelerate-config", "accelerate-estimate-memory", "accelerate-launch", "accelerate-merge-weights",
    "deepspeed", "deepspeed.pt", "ds", "ds_report", "ds_ssh", "ds_elastic", "stalloc", "torchrun",
})
# Modules, with all below them; a script counts as one if its path ends so.
_LAUNCHER_MODULES = (
    "accelerate.commands", "deepspeed.launcher", "stalloc_accel.cli", "torch.distributed.launch",
    "torch.distributed.launcher", "torch.distributed.run", "torchrun",
)
_COMPILE_WORKER_MODULES = ("torch._inductor.compile_worker",)
_SPAWN_MODULES = ("multiprocessing.spawn", "multiprocessing.forkserver", "joblib.externals.loky.backend")


@functools.cache
def role() -> Role:
    """The role of this process. A fork keeps its parent's answer."""
    # A Python before 3.10 has no orig_argv; its argv tells all but modules that are just being found.
    return role_of(getattr(sys, "orig_argv", None) or ["python", *sys.argv])


def role_of(orig_argv: Sequence[str]) -> Role:
    """The role of a process with this command line, the interpreter first."""
    kind, target = _target(orig_argv[1:])
    if kind == "code":
        return Role.SPAWN_CHILD if any(module in target for module in _SPAWN_MODULES) else Role.RANK
    modules = _suffixes(target) if kind == "script" else [target]
    if _names_any(modules, _COMPILE_WORKER_MODULES):
        return Role.COMPILE_WORKER
    if _names_any(modules, _SPAWN_MODULES):
        return Role.SPAWN_CHILD
    if kind == "script" and os.path.basename(target).removesuffix(".exe") in _LAUNCHER_SCRIPTS:
        return Role.LAUNCHER
    return Role.LAUNCHER if _names_any(modules, _LAUNCHER_MODULES) else Role.RANK


def _target(arguments: Sequence[str]) -> tuple[str, str]:
    """("script", path), ("module", name) or ("code", text) of what the interpreter was asked to run."""
    position = 0
    while position < len(arguments):
        argument = arguments[position]
        position += 1
        if argument == "--check-hash-based-pycs":
            position += 1
        elif argument.startswith("--"):
            continue
        elif not argument.startswith("-") or argument == "-":
            return "script", argument
        else:
            flag, value = _flag_with_value(argument)
            if flag and not value:
                value = arguments[position] if position < len(arguments) else ""
                position += 1
            if flag in ("m", "c"):
                return ("module" if flag == "m" else "code"), value
    return "script", ""


def _flag_with_value(argument: str) -> tuple[str, str]:
    """The letter of a cluster such as -um that takes a value, and what follows it in the same word."""
    for index, letter in enumerate(argument[1:], start=1):
        if letter in "mcWX":
            return letter, argument[index + 1:]
    return "", ""


def _suffixes(path: str) -> list[str]:
    """The modules that a script can be as far as its path tells: a/b/c.py is a.b.c, b.c or c."""
    parts = os.path.splitext(path)[0].replace(os.sep, "/").split("/")
    return [".".join(parts[start:]) for start in range(len(parts) - 1)]


def _names_any(modules: Sequence[str], families: Sequence[str]) -> bool:
    return any(f"{module}.".startswith(f"{family}.") for module in modules for family in families)
