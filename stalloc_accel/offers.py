"""The sections that doors find, and the one session that they are merged for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stalloc_accel import environment
from stalloc_accel.config import Source, StallocConfig, merge
from stalloc_accel.errors import ConfigError, describe
from stalloc_accel.session import Session, current

_sections: list[tuple[Source, Mapping[str, Any], str]] = []


def offer(section: Mapping[str, Any], source: Source, origin: str) -> Session | None:
    """Hands in a section that a door found (`origin`: its file or "code"); starts or reconfigures the session.

    Raises ConfigError, which a door passes on. None while no section asks for us.
    """
    if not isinstance(section, Mapping):
        raise ConfigError(describe(origin, "stalloc", section, "must be a section of keys and values"))
    StallocConfig.from_mapping(section, origin)  # names the file in its error, which the merge cannot
    _sections.append((source, section, origin))
    config, conflicts = merge([(where, mapping) for where, mapping, _ in _sections])
    if environment.is_disabled():
        return None
    session = current()
    if session is None:
        if not config.enabled:
            return None
        session = Session(config)
        session.start()
    else:
        session.reconfigure(config)
    for conflict in conflicts:
        session.warn_once(conflict)
    return session
