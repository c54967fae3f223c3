"""Accelerate's command line: accepts the `stalloc` section in its files and `--config` for `--config_file`.

The section leaves the file's contents before Accelerate checks them and travels to the ranks as one token in the
environment, which every launcher passes on. It is kept off the configuration object, whose dictionaries Accelerate
flattens into arguments by their bare keys.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from stalloc_accel import environment
from stalloc_accel.config import SECTION, StallocConfig, section_token
from stalloc_accel.integrations import doors

_DOOR = "accelerate command line"
_ABSENT = object()


class _FileReading:
    """The section of the file that is being read, between its two hooks."""

    section: Any = _ABSENT
    path = ""


# The sections of configuration objects by identity: the objects have no hash, and an attribute would be flattened.
_sections: dict[int, Any] = {}


def hook_config_files(module: Any) -> None:
    """Hooks accelerate.commands.config.config_args."""
    base = module.BaseConfig
    _wrap_process_config(base)
    for reader in ("from_yaml_file", "from_json_file"):
        _wrap_reader(base, reader)
    doors.wrap_method(_DOOR, base, "to_dict", _to_dict)


def _wrap_process_config(base: type) -> None:
    original = base.process_config

    def process_config(config_dict: Any) -> Any:
        if isinstance(config_dict, dict):
            _FileReading.section = config_dict.pop(SECTION, _ABSENT)
            doors.attempt(_DOOR, doors.warn_near_misses, config_dict, _FileReading.path)
        return original(config_dict)

    base.process_config = staticmethod(process_config)


def _wrap_reader(base: type, name: str) -> None:
    original = base.__dict__[name].__func__

    def read(cls: type, *args: Any, **kwargs: Any) -> Any:
        path = str(next(iter([*args, *kwargs.values()]), None) or "Accelerate's default configuration")
        _FileReading.section, _FileReading.path = _ABSENT, path
        try:
            config = original(cls, *args, **kwargs)
        finally:
            section, _FileReading.section = _FileReading.section, _ABSENT
        if section is not _ABSENT:
            _sections[id(config)] = section
            weakref.finalize(config, _sections.pop, id(config), None)
            _pass_on(section, path)
        _warn_of_misplaced(config, path)
        return config

    read.__name__, read.__doc__ = name, original.__doc__
    setattr(base, name, classmethod(read))


def _to_dict(original: Callable[..., dict[str, Any]], config: Any) -> dict[str, Any]:
    """What `accelerate config update` writes back and `accelerate env` shows."""
    result = original(config)
    return {**result, SECTION: _sections[id(config)]} if id(config) in _sections else result


def _pass_on(section: Any, path: str) -> None:
    """Checks the section, so that a mistake stops the launch and not every rank, and hands it to the children.

    The kill switch accepts a section unread: it must help also where the section is what is wrong.
    """
    if environment.is_disabled():
        return
    StallocConfig.from_mapping(section, source=path)
    os.environ["STALLOC_CONFIG"] = section_token(section)
    os.environ["STALLOC_CONFIG_SOURCE"] = path


def _warn_of_misplaced(config: Any, path: str) -> None:
    for name, value in vars(config).items():
        if isinstance(value, Mapping) and SECTION in value:
            doors.warn_once(f"{path}: {SECTION} below {name} is not read. Move it to the top level.")


def hook_parsers(module: Any) -> None:
    """Hooks accelerate.commands.utils: wherever --config_file is declared, --config means the same."""
    doors.wrap_method(_DOOR, module.CustomArgumentParser, "add_argument", _add_argument)


def _add_argument(original: Callable[..., Any], parser: Any, *args: Any, **kwargs: Any) -> Any:
    if "--config" in args:
        _give_way(parser)
    if "--config_file" in args and "--config" not in parser._option_string_actions:
        return original(parser, *args, "--config", **kwargs)
    return original(parser, *args, **kwargs)


def _give_way(parser: Any) -> None:
    """A parser that declares a --config of its own gets it."""
    action = parser._option_string_actions.get("--config")
    if action is not None and "--config_file" in action.option_strings:
        del parser._option_string_actions["--config"]
        action.option_strings = [option for option in action.option_strings if option != "--config"]
