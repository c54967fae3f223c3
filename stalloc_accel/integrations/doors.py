"""What all doors share: handing sections and models to the session, and the rule that a hook never harms its host.

Imports nothing of ours but texts and the environment until somebody asks for us.
"""

from __future__ import annotations

import functools
import json
import logging
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from stalloc_accel import environment
from stalloc_accel.errors import ConfigError

if TYPE_CHECKING:
    from stalloc_accel.config import Source
    from stalloc_accel.session import Session

logger = logging.getLogger("stalloc_accel")

# What was told so far. Hosts are built by one thread; two offers at once would only be told twice.
_offered: set[tuple[int, str]] = set()
_host_fields: dict[str, Callable[[], Mapping[str, Any]]] = {}
_warned: set[str] = set()
_postponed: list[ConfigError] = []
_has_looked = False


def _hook_optimizers() -> None:
    from stalloc_accel.integrations import optimizer_hook
    optimizer_hook.register()


_listeners: list[Callable[[], None]] = [_hook_optimizers]


def offer(section: Any, source: Source, origin: str) -> None:
    """Hands a section to the session, once for each content and source. Raises ConfigError where it cannot be meant.

    The environment's keys come along with the first section of another source: alone they do not ask for us.
    """
    if environment.is_disabled():
        return
    from stalloc_accel.config import Source as Sources
    _offer_once(section, source, origin)
    if from_environment := environment.section():
        _offer_once(from_environment, Sources.ENVIRONMENT, "environment")
    while session() is not None and _listeners:
        attempt("start", _listeners.pop())


def _offer_once(section: Any, source: Source, origin: str) -> None:
    key = (int(source), json.dumps(section, sort_keys=True, default=repr))
    if key not in _offered:
        attempt("start", _offer_to_session, section, source, origin)
        _offered.add(key)


def _offer_to_session(section: Any, source: Source, origin: str) -> None:
    from stalloc_accel import offers
    offers.offer(section, source, origin)


def session() -> Session | None:
    """The running session. Does not load its module: without a section there is none."""
    sessions = sys.modules.get("stalloc_accel.session")
    current = getattr(sessions, "current", None)  # missing while the module itself is being imported
    return current() if current is not None else None


def when_session_starts(listener: Callable[[], None]) -> None:
    """Calls `listener()` once there is a session; at once if there is one."""
    if session() is None:
        _listeners.append(listener)
    else:
        attempt("start", listener)


def look_for_settings() -> None:
    """Offers what can be seen from the command line and the environment, once a process.

    A ConfigError found here is kept for the first door that opens, because `import torch` must not fail.
    """
    global _has_looked
    if _has_looked or environment.is_disabled():
        return
    _has_looked = True
    from stalloc_accel.integrations import visible_settings
    try:
        for section, source, origin in visible_settings.find():
            offer(section, source, origin)
    except ConfigError as error:
        _postponed.append(error)
        attempt("optimizers", _hook_optimizers)


def open_door() -> None:
    """To be called first by every hook that a host's object is built through. Raises a ConfigError that was kept."""
    look_for_settings()
    if _postponed:
        raise _postponed[0]


def has_postponed_error() -> bool:
    return bool(_postponed)


def know_host(name: str, fields: Callable[[], Mapping[str, Any]]) -> None:
    """Registers a host's part of the key; a host that is built later under the same name takes its place."""
    _host_fields[name] = fields


def attach(model: Any) -> None:
    """Names the model to the session, with the fields of every host known by now. The first model wins there."""
    running = session()
    if running is None or model is None:
        return
    maps = [attempt(f"{name} fields", fields) or {} for name, fields in sorted(_host_fields.items())]
    running.attach(model, *maps)


def attempt(door: str, call: Callable[..., Any], *args: Any) -> Any:
    """Runs a part of a hook: only a ConfigError may reach the host, all else is warned about once and gives None."""
    try:
        return call(*args)
    except ConfigError:
        raise
    except Exception as error:
        warn_once(f"{door}: {type(error).__name__}: {error}. This door stays closed; training goes on without it.")
        logger.debug("closed door %s", door, exc_info=True)
        return None


def warn_once(text: str) -> None:
    """A warning of rank 0; the other ranks would only repeat it."""
    if text not in _warned and environment.rank() == 0:
        # The session gives the logger a handler that names us; before that nothing does.
        logger.warning("%s" if logger.handlers else "[stalloc] %s", text)
    _warned.add(text)


def warn_near_misses(mapping: Any, origin: str) -> None:
    """Warns of keys beside our section that were probably meant to be it."""
    if isinstance(mapping, Mapping):
        from stalloc_accel.config import near_misses
        for text in near_misses(mapping):
            warn_once(f"{text} It is in {origin}.")


def wrap_method(door: str, owner: type, name: str, around: Callable[..., Any]) -> bool:
    """Replaces `owner.name` by a function that calls `around(original, self, *args, **kwargs)`; once.

    False, with one warning, where this version of the host has no such method.
    """
    original = owner.__dict__.get(name)
    if not callable(original):
        warn_once(f"{door}: {owner.__name__}.{name} is missing in this version. This door stays closed.")
        return False
    if getattr(original, "_stalloc_wraps", None) is None:
        @functools.wraps(original)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return around(original, *args, **kwargs)

        wrapper._stalloc_wraps = original  # type: ignore[attr-defined]
        setattr(owner, name, wrapper)
    return True
