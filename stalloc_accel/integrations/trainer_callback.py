"""StallocCallback: the Trainer's steps for the session, and the session's figures for the Trainer's logs."""

from __future__ import annotations

from typing import Any

from transformers.trainer_callback import TrainerCallback

from stalloc_accel import fingerprint
from stalloc_accel.config import Source, StallocConfig
from stalloc_accel.integrations import autoload, doors, tracked_figures

# Where torch's autoload is off or we are on the path without being installed, this import is what arms the hooks.
autoload.register()

_DOOR = "trainer"


class _Steps:
    """The last update that was announced: of several callbacks in one Trainer only the first may announce it."""

    last: tuple[int, int] = (0, -1)  # identity of the TrainerState, global step


class StallocCallback(TrainerCallback):
    """Pass to `Trainer(callbacks=[StallocCallback()])`; keywords are those of StallocConfig and have the rank of code.

    Raises ConfigError for a value that cannot be meant. Not needed where a section in a file asks for us.
    """

    def __init__(self, **settings: Any) -> None:
        settings = {"enabled": True, **settings}
        StallocConfig.from_mapping(settings, source="StallocCallback")
        doors.offer(settings, Source.CODE, "StallocCallback")

    def on_init_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        doors.open_door()
        fields = doors.attempt(_DOOR, fingerprint.trainer_fields, args) or {}
        doors.know_host(_DOOR, lambda: fields)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        running = doors.session()
        if running is not None:
            running.claim_boundary("trainer")
            doors.attempt(_DOOR, doors.attach, kwargs.get("model"))

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        # The end of a step and not its beginning: the next batch is moved to the device in between.
        if _Steps.last != (id(state), state.global_step):
            _Steps.last = (id(state), state.global_step)
            running = doors.session()
            if running is not None:
                running.step("trainer")
                if control.should_evaluate:  # decided by the callback that comes first
                    running.phase_may_begin(is_certain=True)

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._end_phase()

    def on_predict(self, args: Any, state: Any, control: Any, metrics: Any = None, **kwargs: Any) -> None:
        self._end_phase()

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._end_phase()

    @staticmethod
    def _end_phase() -> None:
        running = doors.session()
        if running is not None:
            running.phase_ended()

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if not isinstance(logs, dict) or "loss" not in logs:
            return
        running = doors.session()
        if running is not None:
            running.phase_may_begin()  # the Trainer logs, evaluates and saves in this order, and tells only the ends
        figures = doors.attempt(_DOOR, tracked_figures.collect, "stalloc_") or {}
        logs.update(figures)
        if state.log_history:  # the Trainer copied the logs into it before it called us
            state.log_history[-1].update(figures)


class ConfiguredStallocCallback(StallocCallback):
    """The one that is added where a section asked for us: it brings no settings of its own."""

    def __init__(self) -> None:
        pass
