"""Runs a callback when a module has been imported, also for one whose import is under way.

`import torch` is often the first line of a host's own import, so when we come the host is in one of three states: not
imported (a finder waits for it), half imported (its spec tells when it is done), imported (the callback runs at once).
Afterwards no loader, spec or finder of ours is left behind.
"""

from __future__ import annotations

import importlib.abc
import sys
import threading
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

Callback = Callable[[ModuleType], None]

_lock = threading.RLock()  # guards _waiting and the finder's place in sys.meta_path
_waiting: dict[str, list[Callback]] = {}


def when_imported(name: str, callback: Callback) -> None:
    """Calls `callback(module)` once, as soon as the module `name` is fully imported. The callback must not raise."""
    module = sys.modules.get(name)
    spec = getattr(module, "__spec__", None)
    if module is None:
        with _lock:
            _waiting.setdefault(name, []).append(callback)
            if _finder not in sys.meta_path:
                sys.meta_path.insert(0, _finder)
    elif getattr(spec, "_initializing", False) and type(spec) in (ModuleSpec, _WatchedSpec):
        _watch(module, spec, callback)
    else:
        callback(module)


def waiting_for() -> list[str]:
    """Names of the modules that have callbacks and were not imported yet."""
    return sorted(_waiting)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds nothing itself: asks the other finders and lends the loader an exec_module that tells when it is done."""

    def __init__(self) -> None:
        self._searching = threading.local()

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        if fullname not in _waiting or getattr(self._searching, "active", False):
            return None
        self._searching.active = True  # another finder of our kind may ask us in turn
        try:
            spec = _ask_the_others(fullname, path, target)
        finally:
            self._searching.active = False
        if spec is not None and spec.loader is not None:
            _shadow_exec_module(spec.loader, fullname)
        return spec


_finder = _Finder()


def _ask_the_others(fullname: str, path: Any, target: Any) -> ModuleSpec | None:
    for finder in list(sys.meta_path):
        find_spec = getattr(finder, "find_spec", None)
        if finder is not _finder and find_spec is not None:
            spec = find_spec(fullname, path, target)
            if spec is not None:
                return spec
    return None


def _shadow_exec_module(loader: Any, fullname: str) -> None:
    """Shadows the method on the instance: a loader of another type would break runpy, which asks it for code."""
    exec_module = getattr(loader, "exec_module", None)
    if exec_module is None:
        return

    def exec_and_tell(module: ModuleType) -> None:
        vars(loader).pop("exec_module", None)
        exec_module(module)
        _tell(fullname, module)

    try:
        loader.exec_module = exec_and_tell
    except AttributeError:  # a loader without a dictionary; none of the hosts has one
        return


def _tell(name: str, module: ModuleType) -> None:
    with _lock:
        callbacks = _waiting.pop(name, [])
        if not _waiting and _finder in sys.meta_path:
            sys.meta_path.remove(_finder)
    for callback in callbacks:
        callback(module)


class _WatchedSpec(ModuleSpec):
    """A spec for the time that its module is half imported: importlib ends it by setting `_initializing` to False."""

    @property
    def _initializing(self) -> bool:
        return self.__dict__.get("_initializing", False)

    @_initializing.setter
    def _initializing(self, value: bool) -> None:
        self.__dict__["_initializing"] = value
        if value:
            return
        callbacks = self.__dict__.pop("_stalloc_callbacks", [])
        self.__class__ = ModuleSpec
        module = sys.modules.get(self.name)
        if module is not None and getattr(module, "__spec__", None) is self:  # else the import failed
            for callback in callbacks:
                callback(module)


def _watch(module: ModuleType, spec: ModuleSpec, callback: Callback) -> None:
    spec.__dict__.setdefault("_stalloc_callbacks", []).append(callback)
    spec.__class__ = _WatchedSpec
