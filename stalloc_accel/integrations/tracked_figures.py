"""The session's figures as the flat numbers that trackers take."""

from __future__ import annotations

from stalloc_accel.integrations import doors

_GIB = 2**30


def collect(prefix: str) -> dict[str, float]:
    """Names with `prefix` and their values now; empty where no session runs. Sizes are in GiB, rates in [0, 1]."""
    running = doors.session()
    figures = running.figures() if running is not None else None
    if not figures:
        return {}
    steady = figures.get("steady") or {}
    values = {
        "efficiency": steady.get("efficiency", figures.get("efficiency")),
        "hit_rate": figures.get("hit_rate") if steady else None,
        "allocated_peak_gib": _in_gib(steady.get("allocated_peak_bytes", figures.get("allocated_peak_bytes"))),
        "reserved_peak_gib": _in_gib(steady.get("reserved_peak_bytes", figures.get("reserved_peak_bytes"))),
        "fallbacks": sum((figures.get("fallbacks") or {}).values()) if steady else None,
    }
    return {prefix + name: value for name, value in values.items() if value is not None}


def _in_gib(num_bytes: int | None) -> float | None:
    return None if num_bytes is None else round(num_bytes / _GIB, 4)
