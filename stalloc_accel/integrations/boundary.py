"""Announces the steps of one kind to the session: those of the first object only, since a period is its return."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from stalloc_accel.integrations import doors

# So many steps of others without one of the leader: it was left behind, for instance by a second stage of training.
# Far above the critic steps of a GAN.
_MAX_FOREIGN_STEPS = 64


class Boundary:
    """`kind` is one of the session's: session.BOUNDARY_KINDS."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._leader: Callable[[], Any] = lambda: None  # weak reference, so that we keep no optimizer alive
        self._num_foreign = 0

    def around(self, stepper: Any, step: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Runs `step`, a whole update by `stepper`, and ends the period after it.

        The kind is claimed before: hooks of weaker kinds fire inside and must not count.
        """
        session = doors.session()
        if session is None or not self._is_leader(stepper):
            return step(*args, **kwargs)
        session.claim_boundary(self._kind)
        result = step(*args, **kwargs)
        session.step(self._kind)
        return result

    def _is_leader(self, stepper: Any) -> bool:
        leader = self._leader()
        if leader is not stepper:
            self._num_foreign += 1
            if leader is not None and self._num_foreign <= _MAX_FOREIGN_STEPS:
                return False
            self._leader = weakref.ref(stepper)
        self._num_foreign = 0
        return True
