"""What the user sees: a line when recording starts, a line when the plan is active, a table at the end. Rank 0 only."""

from __future__ import annotations

import logging
import sys
from typing import Any

from stalloc_accel import environment

logger = logging.getLogger("stalloc_accel")


class Announcer:
    """Writes through the logger "stalloc_accel"; where nobody configured logging, to stderr."""

    def __init__(self, log_level: str) -> None:
        self._told: set[str] = set()
        self._is_first_rank = environment.rank() == 0
        if not logger.handlers:
            handler = logging.StreamHandler()
            handler.setFormatter(logging.Formatter("[stalloc] %(message)s"))
            logger.addHandler(handler)
            logger.propagate = False
        self.set_level(log_level)

    def set_level(self, log_level: str) -> None:
        logger.setLevel(log_level.upper())

    def warn(self, text: str) -> None:
        if self._is_first_rank:
            logger.warning("%s", text)

    def warn_once(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            self.warn(text)

    def recording(self, skip_steps: int, profile_steps: int) -> None:
        self._inform(f"recording: the plan is made from {profile_steps} steps after the first {skip_steps}")

    def active(self, plan: dict[str, Any], num_events: int, seconds: float, saved_bytes: int | None) -> None:
        saved = "" if saved_bytes is None else f", {_gib(saved_bytes)} less reserved"
        self._inform(f"active: {num_events} events planned in {seconds:.2f} s, {_extent(plan)}{saved}")

    def active_from_store(self, plan: dict[str, Any], *, is_early: bool) -> None:
        since = "from the first allocation" if is_early else "from here on"
        self._inform(f"active {since}: plan found in the store, {_extent(plan)}")

    def grown(self, plan: dict[str, Any], growth_bytes: int) -> None:
        self._inform(f"planned anew for longer batches: {_gib(growth_bytes)} more, {_extent(plan)}")

    def passive(self, reason: str) -> None:
        self._inform(f"passive, torch's own allocator serves: {reason}")

    def failed(self, error: Exception) -> None:
        self.warn(f"passive after an error of ours, training goes on with torch's own allocator: "
                  f"{type(error).__name__}: {error}. Please report it.")
        logger.debug("the error", exc_info=error)

    def summary(self, figures: dict[str, Any], reason: str) -> None:
        """The closing table, on stderr so that it never mixes with what a script prints."""
        if not self._is_first_rank or not logger.isEnabledFor(logging.INFO):
            return
        from rich.console import Console
        from rich.table import Table
        table = Table(title=f"stalloc: {figures['state']}" + (f" ({reason})" if reason else ""), title_justify="left")
        table.add_column("")
        table.add_column("before", justify="right")
        table.add_column("with the plan", justify="right")
        before, steady = figures["before"] or figures, figures["steady"]
        for label, name, show in (("allocated peak", "allocated_peak_bytes", _gib),
                                  ("reserved peak", "reserved_peak_bytes", _gib),
                                  ("efficiency", "efficiency", _share)):
            table.add_row(label, _shown(before[name], show), _shown(steady[name], show) if steady else "-")
        table.add_row("served from slots", "", _shown(figures["hit_rate"], _share))
        for cause, count in figures["fallbacks"].items():
            table.add_row(f"not from slots: {cause}", "", str(count))
        plan = figures["plan"]
        if plan is not None:
            table.add_row("arena / lower bound", "", f"{_gib(plan['arena_bytes'])} / {_gib(plan['lower_bound_bytes'])}")
        table.add_row("plan", "", f"{figures['key'] or '-'}{' (from the store)' if figures['from_cache'] else ''}")
        Console(file=sys.stderr).print(table)

    def _inform(self, text: str) -> None:
        if self._is_first_rank:
            logger.info("%s", text)


def _extent(plan: dict[str, Any]) -> str:
    arena, bound = int(plan["arena_bytes"].sum()), int(plan["lower_bound_bytes"].sum())
    return f"arena {_gib(arena)} for a lower bound of {_gib(bound)}"


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.2f} GiB" if abs(num_bytes) >= 2**29 else f"{num_bytes / 2**20:.2f} MiB"


def _share(value: float) -> str:
    return f"{value:.3f}"


def _shown(value: Any, show: Any) -> str:
    return "n/a" if value is None else show(value)
