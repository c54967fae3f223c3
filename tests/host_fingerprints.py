"""Prints the fields of many small real configurations as one JSON object; run as a process by test_fingerprint.py."""

from __future__ import annotations

import json
import os
import socket
import sys
import tempfile

with socket.socket() as _probe:
    _probe.bind(("127.0.0.1", 0))
    _port = _probe.getsockname()[1]
os.environ.update(DS_ACCELERATOR="cpu", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(_port), RANK="0", WORLD_SIZE="1",
                  LOCAL_RANK="0", STALLOC_DISABLE="1")

import accelerate  # noqa: E402
import deepspeed  # noqa: E402
import peft  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402

from stalloc_accel import fingerprint  # noqa: E402

SIZES = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "vocab_size": 64}


def llama(**changes):
    attention = changes.pop("attn_implementation", "sdpa")
    config = transformers.LlamaConfig(**{**SIZES, **changes})
    return transformers.AutoModelForCausalLM.from_config(config, attn_implementation=attention)


def qwen_moe(experts="grouped_mm"):
    config = transformers.Qwen3MoeConfig(**SIZES, moe_intermediate_size=16, num_experts=4, num_experts_per_tok=2)
    model = transformers.Qwen3MoeForCausalLM(config)
    model.set_experts_implementation(experts)
    return model


def checkpointed(model, use_reentrant):
    model.gradient_checkpointing_enable({"use_reentrant": use_reentrant})
    return model


def frozen(model):
    next(model.parameters()).requires_grad_(False)
    return model


def with_lora(rank, targets):
    return peft.get_peft_model(llama(), peft.LoraConfig(r=rank, target_modules=targets, task_type="CAUSAL_LM"))


def model_maps():
    models = {
        "llama": llama(), "llama again": llama(), "llama named": llama(_name_or_path="some/where", bos_token_id=7),
        "wider": llama(hidden_size=64), "deeper": llama(num_hidden_layers=3), "tied": llama(tie_word_embeddings=True),
        "eager attention": llama(attn_implementation="eager"), "no cache": llama(use_cache=False),
        "bfloat16": llama().to(torch.bfloat16), "frozen": frozen(llama()),
        "dropout": llama(attention_dropout=0.1), "compiled": torch.compile(llama()),
        "checkpointed": checkpointed(llama(), False), "checkpointed, reentrant": checkpointed(llama(), True),
        "moe": qwen_moe(), "eager moe": qwen_moe("eager"), "plain": torch.nn.Linear(3, 5),
        "lora 4": with_lora(4, ["q_proj", "v_proj"]), "lora 8": with_lora(8, ["q_proj", "v_proj"]),
        "lora 4, other targets": with_lora(4, ["q_proj", "k_proj"]),
    }
    return {name: fingerprint.model_fields(model) for name, model in models.items()}


def deepspeed_map(settings, micro_batch=1, accumulation=1):
    config = {"train_micro_batch_size_per_gpu": micro_batch, "gradient_accumulation_steps": accumulation,
              "bf16": {"enabled": True},
              # The default buckets are a gigabyte each, which takes seconds to fill.
              "zero_optimization": {"reduce_bucket_size": 2000, "allgather_bucket_size": 2000, **settings},
              "zero_allow_untested_optimizer": True, "stalloc": {"enabled": True}}
    model = llama()
    engine, *_ = deepspeed.initialize(model=model, optimizer=torch.optim.AdamW(model.parameters()), config=config)
    return {**fingerprint.model_fields(engine), **fingerprint.deepspeed_fields(engine)}


def deepspeed_maps():
    return {
        "zero 1": deepspeed_map({"stage": 1}), "zero 2": deepspeed_map({"stage": 2}), "zero 3": deepspeed_map({"stage": 3}),
        "zero 2 again": deepspeed_map({"stage": 2}), "zero 2, batch 2": deepspeed_map({"stage": 2}, micro_batch=2),
        "zero 2, accumulation 2": deepspeed_map({"stage": 2}, accumulation=2),
        "zero 2, small buckets": deepspeed_map({"stage": 2, "reduce_bucket_size": 1000}),
    }


def trainer_maps():
    def fields(**arguments):
        directory = tempfile.mkdtemp()
        return fingerprint.trainer_fields(transformers.TrainingArguments(output_dir=directory, use_cpu=True, **arguments))

    return {
        "args": fields(), "args, seed and rate": fields(seed=3, learning_rate=1.0, run_name="x", num_train_epochs=9),
        "args, batch": fields(per_device_train_batch_size=3), "args, accumulation": fields(gradient_accumulation_steps=4),
        "args, checkpointing": fields(gradient_checkpointing=True), "args, adafactor": fields(optim="adafactor"),
        "args, bf16": fields(bf16=True), "args, eval batch": fields(per_device_eval_batch_size=2),
        "args, cache emptied": fields(torch_empty_cache_steps=2),
    }


def accelerate_maps():
    maps = {}
    for name, arguments in {"accelerator": {}, "accelerator again": {}, "accelerator, bf16": {"mixed_precision": "bf16"},
                            "accelerator, accumulation": {"gradient_accumulation_steps": 2}}.items():
        accelerate.state.AcceleratorState._reset_state(reset_partial_state=True)
        maps[name] = fingerprint.accelerate_fields(accelerate.Accelerator(cpu=True, **arguments))
    return maps


def version_maps():
    maps = {"versions": fingerprint.version_fields("cpu")}
    torch.use_deterministic_algorithms(True)
    maps["versions, deterministic"] = fingerprint.version_fields("cpu")
    torch.use_deterministic_algorithms(False)
    torch.set_num_threads(torch.get_num_threads() + 1)
    maps["versions, another thread"] = fingerprint.version_fields("cpu")
    return maps


if __name__ == "__main__":
    result = {**version_maps(), **model_maps(), **trainer_maps(), **accelerate_maps(), **deepspeed_maps()}
    with open(sys.argv[1], "w") as file:
        json.dump(result, file)
