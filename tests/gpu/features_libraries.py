"""Libraries that train: each loss of each step. Models are built from a configuration; nothing is downloaded."""

from __future__ import annotations

import importlib.util
import os
import tempfile
from typing import Any

import torch
from parity import FeatureTable, Unavailable

features = FeatureTable("libraries")


def need(*modules: str) -> None:
    for name in modules:
        if importlib.util.find_spec(name) is None:
            raise Unavailable(f"{name} is not installed")


def llama() -> torch.nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(hidden_size=128, intermediate_size=256, num_hidden_layers=3, num_attention_heads=4,
                                        vocab_size=512, use_cache=False, attn_implementation="sdpa"))


def token_batches(device: str, count: int, rows: int = 4, length: int = 64) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(0, 512, (rows, length), generator=generator).to(device) for _ in range(count)]


def stepper(side, model: torch.nn.Module, count: int = 12):
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3, foreach=True)
    batches = iter(token_batches(side.device, count))

    def step() -> float:
        tokens = next(batches)
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    return step


@features("transformers: a Llama with gradient checkpointing", arena_bytes=0, tolerance=1e-6, seconds=90)
def transformers_model(side):
    need("transformers")
    model = llama().to(side.device)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return side.train(stepper(side, model), 10)


@features("peft: LoRA", arena_bytes=0, tolerance=1e-6, seconds=90)
def peft(side):
    need("transformers", "peft")
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(0)
    model = get_peft_model(llama(), LoraConfig(r=8, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")).to(side.device)
    return side.train(stepper(side, model), 10)


@features("transformers: Trainer", tolerance=1e-6, seconds=90)
def hf_trainer(side):
    need("transformers", "accelerate")
    from transformers import Trainer, TrainingArguments

    data: list[dict[str, Any]] = [{"input_ids": row, "labels": row} for batch in token_batches("cpu", 8) for row in batch]
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(output_dir=folder, per_device_train_batch_size=4, max_steps=8, logging_steps=1, seed=1,
                                      report_to=[], save_strategy="no", disable_tqdm=True, use_cpu=side.device == "cpu")
        trainer = Trainer(model=llama(), args=arguments, train_dataset=data)
        trainer.train()
        return [log["loss"] for log in trainer.state.log_history if "loss" in log]


@features("accelerate: prepare, accumulate, gather, clip and save", tolerance=1e-6, seconds=90)
def accelerate(side):
    need("transformers", "accelerate")
    from accelerate import Accelerator

    accelerator = Accelerator(gradient_accumulation_steps=2, cpu=side.device == "cpu")
    model = llama()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loader = torch.utils.data.DataLoader([row for batch in token_batches("cpu", 8) for row in batch], batch_size=4)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    losses = []
    for tokens in loader:
        with accelerator.accumulate(model):
            loss = model(input_ids=tokens, labels=tokens).loss
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        losses.append(float(accelerator.gather(loss.detach()).mean()))
    with tempfile.TemporaryDirectory() as folder:
        accelerator.save_state(folder)
        accelerator.load_state(folder)
        files = len(os.listdir(folder)) > 0
    accelerator.free_memory()
    return [losses, files]


@features("timm: a vision transformer", arena_bytes=0, tolerance=1e-5, seconds=90)
def timm(side):
    need("timm")
    import timm as library

    torch.manual_seed(0)
    model = library.create_model("vit_tiny_patch16_224", pretrained=False, num_classes=10, img_size=64).to(side.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    generator = torch.Generator(side.device).manual_seed(1)

    def step() -> float:
        images = torch.randn(8, 3, 64, 64, device=side.device, generator=generator)
        loss = model(images).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    return side.train(step, 8)


def deepspeed_losses(side, stage: int) -> list[float]:
    need("transformers", "deepspeed")
    if side.device == "cpu":
        raise Unavailable("the rehearsal leaves DeepSpeed out")
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(29700 + stage + 10 * (side.name == "ours")), "RANK": "0",
                   "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    import deepspeed

    model = llama()
    engine, *_ = deepspeed.initialize(
        model=model, optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3),
        config={"train_micro_batch_size_per_gpu": 4, "bf16": {"enabled": True}, "gradient_clipping": 1.0,
                "zero_optimization": {"stage": stage}, "zero_allow_untested_optimizer": True},
    )
    batches = iter(token_batches("cuda", 12))

    def step() -> float:
        tokens = next(batches)
        loss = engine(input_ids=tokens, labels=tokens).loss
        engine.backward(loss)
        engine.step()
        return loss.item()

    try:
        return side.train(step, 10)
    finally:
        engine.destroy()


@features("deepspeed: ZeRO-2", arena_bytes=0, tolerance=1e-6, seconds=120)
def zero_2(side):
    return deepspeed_losses(side, 2)


@features("deepspeed: ZeRO-3", arena_bytes=0, tolerance=1e-6, seconds=120)
def zero_3(side):
    return deepspeed_losses(side, 3)
