"""The Accelerator: takes a StallocPlugin, names the model to the session, announces its steps, feeds its trackers.

`StallocPlugin` is in a module of its own, because it imports accelerate and this one is imported while accelerate is.
"""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable
from typing import Any

from stalloc_accel.integrations import doors, tracked_figures
from stalloc_accel.integrations.boundary import Boundary

_DOOR = "accelerate"
_boundary = Boundary("accelerate")


def __getattr__(name: str) -> Any:
    if name == "StallocPlugin":
        from stalloc_accel.integrations.accelerate_plugin import StallocPlugin
        return StallocPlugin
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def hook_accelerator(module: Any) -> None:
    """Hooks accelerate.accelerator, which holds both classes."""
    accelerator = module.Accelerator
    doors.wrap_method(_DOOR, accelerator, "__init__", _init)
    doors.wrap_method(_DOOR, accelerator, "prepare", _prepare)
    doors.wrap_method(_DOOR, accelerator, "log", _log)
    doors.wrap_method(_DOOR, module.AcceleratedOptimizer, "step", _optimizer_step)


def _init(original: Callable[..., None], accelerator: Any, *args: Any, **kwargs: Any) -> None:
    doors.open_door()
    args, kwargs, plugin = _without_plugin(original, accelerator, args, kwargs)
    if plugin is not None:
        plugin.offer()
    original(accelerator, *args, **kwargs)
    accelerator.stalloc_plugin = plugin if plugin is not None else doors.attempt(_DOOR, _plugin_of_session)
    doors.know_host(_DOOR, functools.partial(_fields, weakref.ref(accelerator)))


def _fields(living: Callable[[], Any]) -> Any:
    """Read when the model is attached and not before: prepare() still fills in plugins and meshes."""
    from stalloc_accel.fingerprint import accelerate_fields
    accelerator = living()
    return accelerate_fields(accelerator) if accelerator is not None else {}


def _without_plugin(original: Callable[..., None], accelerator: Any, args: tuple, kwargs: dict) -> tuple:
    """(args, kwargs, plugin): Accelerate refuses handlers that it does not know by their exact class."""
    try:
        bound = inspect.signature(original).bind(accelerator, *args, **kwargs)
    except TypeError:  # the original says what is wrong
        return args, kwargs, None
    handlers = bound.arguments.get("kwargs_handlers") or []
    ours = [handler for handler in handlers if _is_plugin(handler)]
    if not ours:
        return args, kwargs, None
    bound.arguments["kwargs_handlers"] = [handler for handler in handlers if not _is_plugin(handler)]
    return bound.args[1:], bound.kwargs, ours[-1]


def _is_plugin(handler: Any) -> bool:
    return hasattr(type(handler), "_is_stalloc_plugin")


def _plugin_of_session() -> Any:
    """What a section in a file asked for, in the form that code would have used; None without a session."""
    running = doors.session()
    if running is None:
        return None
    from stalloc_accel.integrations.accelerate_plugin import StallocPlugin
    return StallocPlugin(**running.config.to_mapping())


def _prepare(original: Callable[..., Any], accelerator: Any, *args: Any, **kwargs: Any) -> Any:
    prepared = original(accelerator, *args, **kwargs)
    # Under DeepSpeed the engine has attached the model by now; the first one counts.
    doors.attempt(_DOOR, lambda: doors.attach(next(iter(accelerator._models), None)))
    return prepared


def _optimizer_step(original: Callable[..., Any], optimizer: Any, *args: Any, **kwargs: Any) -> Any:
    """Only steps that end an accumulation are updates; a step that the scaler skips still ends a period."""
    if not optimizer.gradient_state.sync_gradients:
        return original(optimizer, *args, **kwargs)
    return _boundary.around(optimizer, original, optimizer, *args, **kwargs)


def _log(original: Callable[..., Any], accelerator: Any, values: Any, *args: Any, **kwargs: Any) -> Any:
    if isinstance(values, dict) and accelerator.trackers:
        values = {**values, **(doors.attempt(_DOOR, tracked_figures.collect, "stalloc/") or {})}
    return original(accelerator, values, *args, **kwargs)
