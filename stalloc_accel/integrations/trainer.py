"""The Hugging Face Trainer: adds our callback to every Trainer of a process where a session was asked for.

`StallocCallback` is in a module of its own, because it imports transformers and this one is imported while it is.
"""

from __future__ import annotations

from typing import Any

from stalloc_accel.integrations import doors


def __getattr__(name: str) -> Any:
    if name == "StallocCallback":
        from stalloc_accel.integrations.trainer_callback import StallocCallback
        return StallocCallback
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def hook_trainer(module: Any) -> None:
    """Hooks transformers.trainer. Without a session its list of callbacks stays as it is."""
    if not isinstance(getattr(module, "DEFAULT_CALLBACKS", None), list):
        doors.warn_once("trainer: DEFAULT_CALLBACKS is missing in this version. Pass StallocCallback() to the Trainer.")
    elif doors.has_postponed_error():
        _add_callback(module.DEFAULT_CALLBACKS)  # it raises the error where the Trainer is built
    else:
        doors.when_session_starts(lambda: _add_callback(module.DEFAULT_CALLBACKS))


def _add_callback(callbacks: list[Any]) -> None:
    """Callbacks of this list come before the reporters, so these see the figures that ours adds to the logs."""
    from stalloc_accel.integrations.trainer_callback import ConfiguredStallocCallback
    if ConfiguredStallocCallback not in callbacks:
        callbacks.append(ConfiguredStallocCallback)
