"""Fields of a model: what its parameters, modules and settings say about the allocations of a step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from stalloc_accel.fingerprint.key import Fields, digest_of, flatten, read

_MAX_WRAPPERS = 8


def model_fields(model: Any) -> Fields:
    """Any torch module; more is read where it is a Hugging Face or PEFT model.

    Wrappers (DDP, FSDP1, torch.compile, a DeepSpeed engine) are listed and taken off: the rest describes the model
    that was wrapped.
    """
    module, wrappers = _unwrapped(model)
    fields: Fields = {"model.class": _class_name(module), "model.wrappers": wrappers}
    fields.update(_parameter_fields(module))
    fields.update(_buffer_fields(module))
    fields.update(_module_fields(module))
    fields.update(_config_fields(module))
    fields.update(_checkpointing_fields(module))
    fields.update(_peft_fields(module))
    return fields


def _unwrapped(model: Any) -> tuple[Any, list[str]]:
    wrappers = []
    for _ in range(_MAX_WRAPPERS):
        children = model._modules if hasattr(model, "_modules") else {}
        # A wrapper owns one module under one of these names and no parameters of its own.
        name = next((name for name in ("_orig_mod", "module", "_fsdp_wrapped_module") if name in children), None)
        if name is None or len(children) > 1 or any(True for _ in model.parameters(recurse=False)):
            break
        wrappers.append(_class_name(model))
        model = children[name]
    return model, wrappers


def _class_name(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _parameter_fields(module: Any) -> Fields:
    lines, dtypes, devices = [], Counter(), Counter()
    num_elements = num_trainable = 0
    for name, parameter in module.named_parameters():
        shape = _shape_of(parameter)
        dtype = str(parameter.dtype).removeprefix("torch.")
        lines.append(f"{name} {shape} {dtype} {bool(parameter.requires_grad)} {_placement_of(parameter)}")
        size = 1
        for extent in shape:
            size *= extent
        num_elements += size
        num_trainable += size if parameter.requires_grad else 0
        dtypes[dtype] += 1
        devices[parameter.device.type] += 1
    fields: Fields = {
        "model.parameters": digest_of(lines),
        "model.parameters.count": len(lines),
        "model.parameters.elements": num_elements,
        "model.parameters.trainable_elements": num_trainable,
        # Tied parameters appear once above; a tie that is broken adds a tensor here.
        "model.parameters.names": sum(1 for _ in module.named_parameters(remove_duplicate=False)),
    }
    fields.update({f"model.parameters.dtype.{dtype}": count for dtype, count in dtypes.items()})
    fields.update({f"model.parameters.device.{device}": count for device, count in devices.items()})
    return fields


def _shape_of(parameter: Any) -> tuple[int, ...]:
    # Under ZeRO-3 the shape of a partitioned parameter is empty; ds_shape is the true one.
    return tuple(int(extent) for extent in getattr(parameter, "ds_shape", parameter.shape))


def _placement_of(parameter: Any) -> str:
    """How a sharded parameter lies on its mesh, with this rank's part (DTensor: FSDP2, tensor parallelism)."""
    placements = getattr(parameter, "placements", None)
    if placements is None:
        return "whole"
    local = read(lambda: tuple(parameter.to_local().shape))
    mesh = read(lambda: tuple(parameter.device_mesh.shape))
    return f"{tuple(str(placement) for placement in placements)} mesh {mesh} local {local}"


def _buffer_fields(module: Any) -> Fields:
    lines = [f"{name} {tuple(buffer.shape)} {buffer.dtype}" for name, buffer in module.named_buffers()]
    return {"model.buffers": digest_of(lines), "model.buffers.count": len(lines)}


def _module_fields(module: Any) -> Fields:
    lines, counts = [], Counter()
    for name, child in module.named_modules():
        lines.append(f"{name} {_class_name(child)}")
        counts[type(child).__qualname__] += 1
    fields: Fields = {"model.modules": digest_of(lines)}
    fields.update({f"model.modules.{name}": count for name, count in counts.items()})
    compiled = sum(1 for child in module.modules() if getattr(child, "_compiled_call_impl", None) is not None)
    fields["model.compiled_modules"] = compiled
    return fields


def _config_fields(module: Any) -> Fields:
    config = getattr(module, "config", None)
    if config is None:
        return {}
    difference = read(lambda: config.to_diff_dict())
    fields = flatten("model.config", config if difference is None else difference)
    for name, part in _parts_of(config):
        for attribute in ("_attn_implementation", "_experts_implementation", "use_cache"):
            value = read(lambda part=part, attribute=attribute: getattr(part, attribute))
            if isinstance(value, (str, bool)):
                fields[f"model.{name}{attribute.lstrip('_')}"] = value
    fields["model.hidden_size"] = read(lambda: int(config.get_text_config().hidden_size))
    device_map = getattr(module, "hf_device_map", None)
    if isinstance(device_map, dict):
        fields["model.device_map"] = digest_of(f"{name} {place}" for name, place in sorted(device_map.items()))
    return fields


def _parts_of(config: Any) -> Iterator[tuple[str, Any]]:
    """The configuration and those of its parts (vision tower, text model), which choose implementations of their own."""
    yield "", config
    for name in sorted(getattr(config, "sub_configs", None) or {}):
        part = getattr(config, name, None)
        if part is not None:
            yield f"{name}.", part


def _checkpointing_fields(module: Any) -> Fields:
    checkpointed, functions = Counter(), {}
    for child in module.modules():
        if getattr(child, "gradient_checkpointing", False) is True:
            checkpointed[type(child).__qualname__] += 1
            function = getattr(child, "_gradient_checkpointing_func", None)
            if function is not None:
                functions = flatten("model.gradient_checkpointing.by", function)
    fields: Fields = {"model.gradient_checkpointing": bool(checkpointed)}
    fields.update({f"model.gradient_checkpointing.{name}": count for name, count in checkpointed.items()})
    return {**fields, **functions}


def _peft_fields(module: Any) -> Fields:
    adapters = getattr(module, "peft_config", None)
    if not isinstance(adapters, dict):
        return {}
    fields: Fields = {}
    for name, adapter in adapters.items():
        settings = read(lambda adapter=adapter: adapter.to_dict())
        fields.update(flatten(f"model.peft.{name}", adapter if settings is None else settings))
    active = read(lambda: list(module.active_adapters))
    fields["model.peft.active"] = active if isinstance(active, list) else None
    return fields
