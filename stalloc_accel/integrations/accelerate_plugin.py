"""StallocPlugin: our settings in the form of Accelerate's plugins, for those who prefer code to a section in a file."""

from __future__ import annotations

import dataclasses
from typing import Any

from accelerate.utils.dataclasses import KwargsHandler

from stalloc_accel.config import Source, StallocConfig
from stalloc_accel.integrations import autoload, doors

# Where torch's autoload is off or we are on the path without being installed, this import is what arms the hooks.
autoload.register()


class _PluginMethods(KwargsHandler):
    _is_stalloc_plugin = True

    def __post_init__(self) -> None:
        StallocConfig.from_mapping(self.settings(), source="StallocPlugin")

    def settings(self) -> dict[str, Any]:
        """The keys that were given: only these have the rank of code, the others are left to weaker sources."""
        return {key: value for key, value in vars(self).items() if value is not None}

    def offer(self) -> None:
        doors.offer(self.settings(), Source.CODE, "StallocPlugin")


# One list of settings: the fields are those of StallocConfig, each None where it was not given.
StallocPlugin = dataclasses.make_dataclass(
    "StallocPlugin",
    [(f.name, f.type, dataclasses.field(default=True if f.name == "enabled" else None))
     for f in dataclasses.fields(StallocConfig)],
    bases=(_PluginMethods,),
    kw_only=True,
)
StallocPlugin.__module__ = __name__
StallocPlugin.__doc__ = """Pass to `Accelerator(kwargs_handlers=[StallocPlugin(...)])`. Fields: those of StallocConfig.

Construction raises ConfigError for a value that cannot be meant.
"""
