"""The entry point that `import torch` calls in every process: decides by role, arms hooks, and starts a rank early.

It runs for everybody who has us installed, so it costs next to nothing, imports nothing heavy and never raises: an
exception here would make `import torch` fail.
"""

from __future__ import annotations

import os
import sys

_SETTINGS = ("STALLOC_CONFIG", "STALLOC_ENABLED", "ACCELERATE_DEEPSPEED_CONFIG_FILE")
_has_registered = False


def autoload() -> None:
    """Called by torch at the end of its import. Must not raise."""
    try:
        from stalloc_accel import process
        role = process.role()
        if role is not process.Role.COMPILE_WORKER:
            register(is_launcher=role is process.Role.LAUNCHER)
        if role is process.Role.RANK and _may_have_settings():
            _start_early()
    except Exception as error:
        import warnings
        warnings.warn(f"stalloc: autoload: {type(error).__name__}: {error}. Training goes on without it.", stacklevel=2)


def register(is_launcher: bool = False) -> None:
    """Arms the hooks of every host; those that are not installed cost a dictionary entry."""
    global _has_registered
    if _has_registered:
        return
    _has_registered = True
    from stalloc_accel.integrations.import_hooks import when_imported
    for module, hook in (_LAUNCHER_HOOKS if is_launcher else _RANK_HOOKS).items():
        when_imported(module, _later(hook))


# Host's module -> our module and the function in it that takes the host's module.
_LAUNCHER_HOOKS = {
    "accelerate.commands.config.config_args": ("accelerate_commands", "hook_config_files"),
    "accelerate.commands.utils": ("accelerate_commands", "hook_parsers"),
    "deepspeed.launcher.runner": ("deepspeed", "hook_runner"),
}
_RANK_HOOKS = {
    **_LAUNCHER_HOOKS,
    "accelerate.accelerator": ("accelerate", "hook_accelerator"),
    "accelerate.utils.deepspeed": ("deepspeed", "hook_hf_config"),
    "accelerate.utils.dataclasses": ("deepspeed", "hook_accelerate_plugin"),
    "deepspeed.runtime.config": ("deepspeed", "hook_config"),
    "deepspeed.runtime.engine": ("deepspeed", "hook_engine"),
    "deepspeed.runtime.pipe.engine": ("deepspeed", "hook_pipeline_engine"),
    "transformers.trainer": ("trainer", "hook_trainer"),
}


def _later(hook):
    """The callback of an import hook: loads our module when the host's is there, and never raises into an import."""
    module_name, function_name = hook

    def callback(host_module):
        from importlib import import_module

        from stalloc_accel.integrations import doors
        ours = doors.attempt(module_name, import_module, f"stalloc_accel.integrations.{module_name}")
        if ours is not None:
            doors.attempt(module_name, getattr(ours, function_name), host_module)

    return callback


def _may_have_settings() -> bool:
    """A cheap sieve; what passes it is looked at closely."""
    if any(name in os.environ for name in _SETTINGS):
        return True
    return any(argument.endswith(".json") or argument.startswith("--deepspeed") for argument in sys.argv[1:])


def _start_early() -> None:
    from stalloc_accel.integrations import doors
    doors.look_for_settings()
