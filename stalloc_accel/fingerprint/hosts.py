"""Fields of DeepSpeed, Accelerate and the Trainer: how the model is split, and in what precision and portions it runs.

Groups that do not exist yet are never asked for: some of the hosts' getters create them, which communicates.
"""

from __future__ import annotations

from typing import Any

from stalloc_accel.fingerprint.key import Fields, flatten, read

# Parts of DeepSpeed's parsed configuration that change allocations; each may be missing in a version.
_DEEPSPEED_SETTINGS = (
    "activation_checkpointing_config", "communication_data_type", "compile_config", "disable_allgather",
    "expert_parallel_config", "bfloat16_config", "float16_config", "bfloat16_enabled", "fp16_enabled", "grad_accum_dtype",
    "gradient_accumulation_steps", "gradient_clipping", "gradient_predivide_factor", "hybrid_engine",
    "managed_gradient_accumulation", "optimizer_name", "pipeline", "prescale_gradients",
    "seq_parallel_communication_data_type", "tensor_parallel_config", "torch_autocast_dtype", "torch_autocast_enabled",
    "train_batch_size", "train_micro_batch_size_per_gpu", "weight_quantization_config",
    "zero_allow_untested_optimizer", "zero_force_ds_cpu_optimizer",
)
_DEEPSPEED_SIZES = ("world_size", "dp_world_size", "mp_world_size", "seq_dp_world_size", "sequence_parallel_size")

# Arguments that decide what is allocated. All others (rates, seeds, directories, reporting) leave the key as it is.
_TRAINER_ARGUMENTS = (
    "accelerator_config", "activation_checkpointing", "activation_checkpointing_kwargs", "auto_find_batch_size",
    "average_tokens_across_devices", "batch_eval_metrics", "bf16", "bf16_full_eval", "dataloader_drop_last",
    "dataloader_pin_memory", "ddp_broadcast_buffers", "ddp_bucket_cap_mb", "ddp_find_unused_parameters",
    "ddp_static_graph", "eval_accumulation_steps", "fp16", "fp16_full_eval", "fp16_opt_level", "fsdp", "fsdp_config",
    "full_determinism", "gradient_accumulation_steps", "gradient_checkpointing", "gradient_checkpointing_kwargs",
    "half_precision_backend", "label_smoothing_factor", "length_column_name", "liger_kernel_config", "max_grad_norm",
    "n_gpu", "neftune_noise_alpha", "optim", "optim_args", "optim_target_modules", "parallelism_config",
    "per_device_eval_batch_size", "per_device_train_batch_size", "prediction_loss_only", "tf32", "torch_compile",
    "torch_compile_backend", "torch_compile_mode", "torch_empty_cache_steps", "train_sampling_strategy",
    "group_by_length", "use_cpu", "use_liger_kernel", "world_size",
)


def deepspeed_fields(engine: Any) -> Fields:
    """A DeepSpeedEngine after its construction, when every "auto" is resolved."""
    # The engine forwards unknown attributes to the model, so only names that DeepSpeed itself defines are read.
    config = read(lambda: engine._config)
    fields = flatten("deepspeed.zero", read(lambda: config.zero_config))
    for name in _DEEPSPEED_SETTINGS:
        if hasattr(config, name):
            value = getattr(config, name)
            # Older settings are plain objects with attributes.
            plain = vars(value) if type(value).__module__.startswith("deepspeed.") and hasattr(value, "__dict__") else value
            fields.update(flatten(f"deepspeed.{name}", value if hasattr(value, "model_dump") else plain))
    fields["deepspeed.dtypes"] = read(lambda: [str(dtype) for dtype in engine.get_data_types()])
    fields["deepspeed.optimizer"] = _class_of(read(lambda: engine.optimizer))
    fields["deepspeed.basic_optimizer"] = _class_of(read(lambda: engine.basic_optimizer))
    for name in _DEEPSPEED_SIZES:
        fields[f"deepspeed.{name}"] = read(lambda name=name: int(getattr(engine, name)))
    fields["deepspeed.has_moe_layers"] = read(lambda: bool(engine.has_moe_layers))
    fields["deepspeed.num_experts"] = read(lambda: list(engine.num_experts))
    fields.update(_deepspeed_coordinates(engine))
    return fields


def _deepspeed_coordinates(engine: Any) -> Fields:
    fields: Fields = {"deepspeed.rank": read(lambda: int(engine.global_rank))}
    fields["deepspeed.dp_rank"] = _rank_in(read(lambda: engine.data_parallel_group))
    fields["deepspeed.seq_dp_rank"] = _rank_in(read(lambda: engine.seq_data_parallel_group))
    if read(lambda: engine.mp_world_size) not in (None, 1):
        fields["deepspeed.tp_rank"] = read(lambda: int(engine.mpu.get_model_parallel_rank()))
    if read(lambda: engine.mesh_device) is not None:
        fields["deepspeed.sp_rank"] = read(lambda: int(engine.mesh_device.get_local_rank("sequence_parallel")))
    for name, group in sorted((read(lambda: dict(engine.expert_parallel_group)) or {}).items()):
        fields[f"deepspeed.{name}.rank"] = _rank_in(group)
        fields[f"deepspeed.{name}.size"] = read(lambda group=group: int(group.size()))
    if read(lambda: engine.pipeline_parallelism):
        grid = engine.grid
        fields["deepspeed.pp_rank"] = read(lambda: int(engine.stage_id))
        fields["deepspeed.pp_size"] = read(lambda: int(grid.pipe_parallel_size))
        fields["deepspeed.grid_dp_size"] = read(lambda: int(grid.data_parallel_size))
        fields["deepspeed.grid_tp_size"] = read(lambda: int(grid.model_parallel_size))
    return fields


def _rank_in(group: Any) -> int | None:
    return None if group is None else read(lambda: int(group.rank()))


def _class_of(value: Any) -> str | None:
    return None if value is None else f"{type(value).__module__}.{type(value).__qualname__}"


def accelerate_fields(accelerator: Any) -> Fields:
    fields: Fields = {
        "accelerate.distributed_type": read(lambda: str(accelerator.distributed_type.name)),
        "accelerate.mixed_precision": read(lambda: str(accelerator.mixed_precision)),
        "accelerate.gradient_accumulation_steps": read(lambda: int(accelerator.gradient_accumulation_steps)),
        "accelerate.is_fsdp2": read(lambda: bool(accelerator.is_fsdp2)),
        "accelerate.device": read(lambda: accelerator.device.type),
        "accelerate.batch_size": read(lambda: int(next(iter(accelerator._dataloaders), None).batch_sampler.batch_size)),
        "accelerate.split_batches": read(lambda: bool(accelerator.split_batches)),
        "accelerate.rank": read(lambda: int(accelerator.process_index)),
        "accelerate.world_size": read(lambda: int(accelerator.num_processes)),
    }
    state = read(lambda: accelerator.state)
    for name in ("fsdp_plugin", "megatron_lm_plugin", "dynamo_plugin", "torch_tp_plugin"):
        plugin = read(lambda name=name: getattr(state, name))
        if plugin is not None:
            fields.update(flatten(f"accelerate.{name}", plugin))
    for name in ("ddp_handler", "fp8_recipe_handler", "autocast_handler", "scaler_handler"):
        handler = read(lambda name=name: getattr(accelerator, name))
        if handler is not None:
            fields.update(flatten(f"accelerate.{name}", handler))
    fields.update(_mesh_fields(accelerator))
    return fields


def _mesh_fields(accelerator: Any) -> Fields:
    parallelism = read(lambda: accelerator.parallelism_config)
    if parallelism is None:
        return {}
    fields: Fields = {}
    for name in ("dp_replicate", "dp_shard", "tp", "cp", "sp"):
        fields[f"accelerate.{name}_size"] = read(lambda name=name: int(getattr(parallelism, f"{name}_size")))
    for name in ("cp_backend", "sp_backend"):
        fields[f"accelerate.{name}"] = read(lambda name=name: getattr(parallelism, name))
    mesh = read(lambda: accelerator.torch_device_mesh)
    for name in (read(lambda: mesh.mesh_dim_names) or ()):
        fields[f"accelerate.{name}_rank"] = read(lambda name=name: int(mesh.get_local_rank(name)))
    return fields


def trainer_fields(args: Any) -> Fields:
    """TrainingArguments, or any object with attributes of the same names."""
    fields: Fields = {}
    for name in _TRAINER_ARGUMENTS:
        value = read(lambda name=name: getattr(args, name))
        if value is not None:
            fields.update(flatten(f"trainer.{name}", value))
    fields["trainer.rank"] = read(lambda: int(args.process_index))
    deepspeed = read(lambda: dict(args.hf_deepspeed_config.config))
    if deepspeed is not None:
        deepspeed.pop("stalloc", None)  # our own settings have fields of their own
        fields.update(flatten("trainer.deepspeed", deepspeed))
    return fields
