"""The last door: a script that uses no host, or does not give its optimizer to one, steps a torch optimizer.

Uses torch's public global hooks and replaces nothing. They are registered only where a session runs.
"""

from __future__ import annotations

from typing import Any

from stalloc_accel.integrations import doors
from stalloc_accel.integrations.boundary import Boundary

_boundary = Boundary("optimizer")
_has_registered = False


def register() -> None:
    """Registers the hooks with torch, once."""
    global _has_registered
    if _has_registered:
        return
    _has_registered = True
    from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
    if doors.has_postponed_error():
        register_optimizer_step_pre_hook(_before_step)
    register_optimizer_step_post_hook(_after_step)


def _before_step(optimizer: Any, args: Any, kwargs: Any) -> None:
    doors.open_door()


def _after_step(optimizer: Any, args: Any, kwargs: Any) -> None:
    from torch.compiler import is_compiling
    if not is_compiling():  # inside a compiled optimizer a boundary would break the graph
        _boundary.around(optimizer, _nothing)


def _nothing() -> None:
    """The step is over when torch calls us."""
