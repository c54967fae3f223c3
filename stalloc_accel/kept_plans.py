"""The plans of the store that concern one run: found by its command, later by its model, and kept for the next run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stalloc_accel.config import StallocConfig
from stalloc_accel.fingerprint.key import Key
from stalloc_accel.plan_file import StoredPlan
from stalloc_accel.plan_job import Plan
from stalloc_accel.plan_store import PlanStore


class KeptPlans:
    def __init__(self, config: StallocConfig, launch_key: Key, *, is_early: bool) -> None:
        """`is_early`: this run was there at its first allocation, and so is its plan. The plan of any other begins when its
        host was built, or when a bare loop asked for us."""
        self._store = PlanStore(config.cache_path(), config.cache)
        self._launch_key = launch_key
        self._is_early = is_early

    def candidate(self) -> tuple[Key, StoredPlan] | None:
        """What the same command left behind, with the key of its model."""
        found = self._store.candidate(self._launch_key)
        return found if found is not None and self.begins_as_this_run(found[1]) else None

    def begins_as_this_run(self, stored: StoredPlan) -> bool:
        return stored.facts.get("early") == self._is_early

    def is_of_command(self, key: Key) -> bool:
        """Whether it names the command itself, as it does where no model was ever named."""
        return key.digest == self._launch_key.digest

    def of_model(self, key: Key) -> StoredPlan | None:
        return self._store.get(key)

    def keep(self, key: Key | None, lasting: Plan, facts: Mapping[str, Any]) -> None:
        """`key`: of the model; None in a bare loop that named none."""
        key = key or self._launch_key
        if self._store.put(key, lasting, {"early": self._is_early, **facts}):
            self._store.link(self._launch_key, key)
