"""Planned GPU memory for DeepSpeed, Accelerate and the Hugging Face Trainer.

Importing this package costs nothing: torch, the hosts and our own engine load when one of the names below is used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["Session", "StallocCallback", "StallocConfig", "StallocPlugin", "__version__"]

if TYPE_CHECKING:
    from .config import StallocConfig
    from .integrations.accelerate_plugin import StallocPlugin
    from .integrations.trainer_callback import StallocCallback
    from .session import Session

_HOME = {
    "Session": ".session",
    "StallocCallback": ".integrations.trainer_callback",
    "StallocConfig": ".config",
    "StallocPlugin": ".integrations.accelerate_plugin",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOME[name], __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
