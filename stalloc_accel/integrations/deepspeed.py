"""DeepSpeed: finds the "stalloc" section wherever a configuration is read, names the engine, announces its updates."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from stalloc_accel.config import SECTION, Source
from stalloc_accel.integrations import doors
from stalloc_accel.integrations.boundary import Boundary

_DOOR = "deepspeed"
_AUDITED_VERSIONS = frozenset({"0.19.8"})  # of whose streams docs/streams.md tells
_boundary = Boundary("deepspeed")


def hook_config(module: Any) -> None:
    """Hooks deepspeed.runtime.config: every raw configuration, path, dict or base64, ends in a DeepSpeedConfig."""
    doors.wrap_method(_DOOR, module.DeepSpeedConfig, "__init__", _config_init)


def hook_hf_config(module: Any) -> None:
    """Hooks accelerate.utils.deepspeed: TrainingArguments and the Accelerator read configurations here, early."""
    doors.wrap_method(_DOOR, module.HfDeepSpeedConfig, "__init__", _hf_config_init)


def hook_accelerate_plugin(module: Any) -> None:
    """Hooks accelerate.utils.dataclasses: resolving "auto" must not look into our section, where it has our meaning."""
    doors.wrap_method(_DOOR, module.DeepSpeedPlugin, "deepspeed_config_process", _config_process)


def hook_engine(module: Any) -> None:
    """Hooks deepspeed.runtime.engine; the other engines inherit both methods."""
    if doors.wrap_method(_DOOR, module.DeepSpeedEngine, "_take_model_step", _take_model_step):
        doors.wrap_method(_DOOR, module.DeepSpeedEngine, "__init__", _engine_init)


def hook_pipeline_engine(module: Any) -> None:
    """Hooks deepspeed.runtime.pipe.engine, whose engine knows its stage only when its own construction is over."""
    doors.wrap_method(_DOOR, module.PipelineEngine, "__init__", _pipeline_init)


def hook_runner(module: Any) -> None:
    """Hooks deepspeed.launcher.runner: our variables reach the ranks on other machines, the kill switch among them."""
    if isinstance(getattr(module, "EXPORT_ENVS", None), list) and "STALLOC" not in module.EXPORT_ENVS:
        module.EXPORT_ENVS.append("STALLOC")


def _config_init(original: Callable[..., None], config: Any, *args: Any, **kwargs: Any) -> None:
    doors.open_door()
    original(config, *args, **kwargs)
    _offer_from(getattr(config, "_param_dict", None), _origin(args, kwargs, "config"))


def _hf_config_init(original: Callable[..., None], config: Any, *args: Any, **kwargs: Any) -> None:
    doors.open_door()
    original(config, *args, **kwargs)
    _offer_from(config.config, _origin(args, kwargs, "config_file_or_dict"))


def _origin(args: tuple, kwargs: dict, name: str) -> str:
    given = kwargs.get(name, args[0] if args else None)
    return given if isinstance(given, str) and os.path.isfile(given) else "DeepSpeed configuration"


def _offer_from(outer: Any, origin: str) -> None:
    if not isinstance(outer, dict):
        return
    doors.attempt(_DOOR, doors.warn_near_misses, outer, origin)
    if SECTION in outer:
        doors.offer(outer[SECTION], Source.DEEPSPEED, origin)


def _config_process(original: Callable[..., Any], plugin: Any, *args: Any, **kwargs: Any) -> Any:
    outer = getattr(plugin, "deepspeed_config", None)
    if not isinstance(outer, dict) or SECTION not in outer:
        return original(plugin, *args, **kwargs)
    section = outer.pop(SECTION)
    try:
        return original(plugin, *args, **kwargs)
    finally:
        outer[SECTION] = section


def _engine_init(original: Callable[..., None], engine: Any, *args: Any, **kwargs: Any) -> None:
    # By now the configuration is parsed; this catches versions where its own hook found nothing to wrap.
    _offer_from(getattr(kwargs.get("config_class"), "_param_dict", None), "DeepSpeed configuration")
    original(engine, *args, **kwargs)
    if not any(base.__name__ == "PipelineEngine" for base in type(engine).__mro__):
        _attach_if_asked(engine)


def _pipeline_init(original: Callable[..., None], engine: Any, *args: Any, **kwargs: Any) -> None:
    original(engine, *args, **kwargs)
    _attach_if_asked(engine)


def _attach_if_asked(engine: Any) -> None:
    if doors.session() is not None:
        doors.attempt(_DOOR, _attach, engine)


def _attach(engine: Any) -> None:
    from stalloc_accel.fingerprint import deepspeed_fields
    fields = deepspeed_fields(engine)
    doors.know_host(_DOOR, lambda: fields)
    if _streams_were_audited(engine):
        doors.session().vouch_for_streams(_streams_of(engine))
    doors.attach(engine.module)


def _streams_were_audited(engine: Any) -> bool:
    """Whether docs/streams.md speaks of this version and of all that this configuration runs on streams of its own."""
    import deepspeed
    if deepspeed.__version__ not in _AUDITED_VERSIONS or type(engine).__name__ != "DeepSpeedEngine":
        return False
    config = engine._config
    zero = config.zero_config
    offloads = (zero.offload_optimizer, zero.offload_param)
    unread = (zero.zenflow, zero.zero_quantized_weights, zero.zero_quantized_gradients, zero.zero_hpz_partition_size > 1,
              config.compile_config.deepcompile, config.expert_parallel_config.enabled,
              config.activation_checkpointing_config.cpu_checkpointing,
              any(one is not None and one.device == "nvme" for one in offloads),
              any(getattr(one, "super_offload", False) for one in offloads))
    optimizers = ("DeepSpeedZeroOptimizer", "DeepSpeedZeroOptimizer_Stage3")
    return type(engine.optimizer).__name__ in optimizers and not any(unread)


def _streams_of(engine: Any) -> list[int]:
    """The streams that ZeRO runs on besides the current one, as handles."""
    optimizer = engine.optimizer
    offload = getattr(optimizer, "parameter_offload", None)
    streams = (getattr(optimizer, "reduction_stream", None), getattr(optimizer, "reduce_and_partition_stream", None),
               getattr(offload, "_DeepSpeedZeRoOffload__allgather_stream", None))
    return [stream.cuda_stream for stream in streams if hasattr(stream, "cuda_stream")]


def _take_model_step(original: Callable[..., Any], engine: Any, *args: Any, **kwargs: Any) -> Any:
    """The one place where an update is taken, in every engine and under every host."""
    return _boundary.around(engine, original, engine, *args, **kwargs)
