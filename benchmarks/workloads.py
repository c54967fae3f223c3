"""Real training runs that benchmarks measure: dense, LoRA, T5, MoE, DeepSpeed ZeRO, FSDP2, the HF Trainer.

Each run evaluates and saves as people do. Nothing here knows about stalloc. Models are made from a config, with a fixed seed.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import Any

import torch

VOCABULARY = 32000
LENGTHS = (1024, 1536, 512, 1280, 768, 2048, 1792, 900, 1100, 1333)
EVALUATE_AT, SAVE_AT = (4, 9, 14), (10,)  # after these steps

WORKLOADS: dict[str, dict[str, Any]] = {
    "dense": {"batch": 8, "lengths": (2048,), "steps": 16},
    "dense_ckpt": {"batch": 16, "lengths": (2048,), "steps": 16, "checkpointing": True},
    "dense_var": {"batch": 8, "lengths": LENGTHS, "steps": 20},
    "dense_var_ckpt": {"batch": 16, "lengths": LENGTHS, "steps": 20, "checkpointing": True},
    "lora_var": {"kind": "lora", "batch": 8, "lengths": LENGTHS, "steps": 20, "checkpointing": True},
    "t5_var": {"kind": "t5", "batch": 4, "lengths": LENGTHS, "steps": 20},
    "moe_eager": {"kind": "moe", "batch": 4, "lengths": LENGTHS, "steps": 20, "hidden": 1024, "layers": 8},
    "moe_grouped": {"kind": "moe", "experts": "grouped_mm", "batch": 8, "lengths": LENGTHS, "steps": 20, "hidden": 1024,
                    "layers": 8, "checkpointing": True},
    "zero2_var": {"batch": 8, "lengths": LENGTHS, "steps": 16, "checkpointing": True, "accumulation": 2,
                  "zero": {"stage": 2, "overlap_comm": True}},
    "zero3_ckpt": {"batch": 8, "lengths": (2048,), "steps": 12, "checkpointing": True, "zero": {"stage": 3}},
    "zero3_var": {"batch": 8, "lengths": LENGTHS, "steps": 12, "checkpointing": True, "accumulation": 2,
                  "zero": {"stage": 3, "overlap_comm": True}},
    "zero3_offload": {"batch": 8, "lengths": LENGTHS, "steps": 10, "checkpointing": True, "layers": 12,
                      "zero": {"stage": 3, "offload_optimizer": {"device": "cpu"}}},
    "fsdp2": {"kind": "fsdp2", "batch": 8, "lengths": (2048,), "steps": 16, "checkpointing": True},
    "trainer_var": {"kind": "trainer", "batch": 8, "steps": 20, "layers": 12, "checkpointing": True},
    "tiny": {"batch": 2, "lengths": (128,), "steps": 8, "hidden": 256, "layers": 2},
}


class Run:
    """One workload. `steps()` yields a function for each step, which trains it and returns the loss; what lies between two
    steps (evaluating, saving) is done by the generator."""

    def __init__(self, name: str, device: str = "cuda", num_steps: int | None = None) -> None:
        self.work, self.device = WORKLOADS[name], device
        self.num_steps = num_steps or self.work["steps"]
        if os.environ.get("BENCHMARK_SMOKE"):  # the same paths in a second, on a CPU
            self.work = {**self.work, "hidden": 128, "layers": 2, "batch": 2, "lengths": (32, 48, 24)}
        self.generator = torch.Generator().manual_seed(1)
        self.num_batches = 0
        torch.manual_seed(0)
        torch.use_deterministic_algorithms(True, warn_only=self.work.get("kind") in ("moe", "t5"))
        self.model = make_model(self.work, device)
        if self.work.get("checkpointing"):
            self.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})

    def batch(self, rows: int | None = None) -> dict[str, torch.Tensor]:
        """The next batch: tokens as inputs and labels, a length from the list each time."""
        lengths, rows = self.work["lengths"], rows or self.work["batch"]
        length, self.num_batches = lengths[self.num_batches % len(lengths)], self.num_batches + 1
        target = lengths[(3 * self.num_batches) % len(lengths)] if self.work.get("kind") == "t5" else length

        def tokens(width: int) -> torch.Tensor:
            return torch.randint(3, VOCABULARY, (rows, width), generator=self.generator).to(self.device)

        inputs = tokens(length)
        return {"input_ids": inputs, "labels": tokens(target // 2) if target != length else inputs}

    def steps(self) -> Iterator[Callable[[], float]]:
        kind = self.work.get("kind")
        if kind == "trainer":
            raise ValueError(f"{kind}: the Trainer has a loop of its own, call train_with_trainer")
        model, update = self._deepspeed() if "zero" in self.work else self._plain(kind == "fsdp2")
        for step in range(self.num_steps):
            yield update
            if step in EVALUATE_AT:
                model.eval()
                with torch.no_grad():
                    for _ in range(2):
                        model(**self.batch(max(1, self.work["batch"] // 2)))
                model.train()
            if step in SAVE_AT:
                self._save(model)

    def _plain(self, sharded: bool) -> tuple[Any, Callable[[], float]]:
        if sharded:
            _shard(self.model)
        trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        optimizer = torch.optim.AdamW(trained, lr=1e-4, foreach=True)

        def update() -> float:
            loss = self.model(**self.batch()).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.item()

        return self.model, update

    def _deepspeed(self) -> tuple[Any, Callable[[], float]]:
        import deepspeed
        accumulation = self.work.get("accumulation", 1)
        config: dict[str, Any] = {
            "train_micro_batch_size_per_gpu": self.work["batch"], "gradient_accumulation_steps": accumulation,
            "bf16": {"enabled": self.device == "cuda"}, "zero_optimization": self.work["zero"], "zero_allow_untested_optimizer": True,
            "zero_force_ds_cpu_optimizer": False, "gradient_clipping": 1.0,
        }
        if os.environ.get("BENCHMARK_SECTION"):  # what the user writes into the file
            config["stalloc"] = {"enabled": True}
        optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        engine, *_ = deepspeed.initialize(model=self.model, optimizer=optimizer, config=config)

        def update() -> float:
            for _ in range(accumulation):
                loss = engine(**self.batch()).loss
                engine.backward(loss)
                engine.step()
            return loss.item()

        return engine, update

    def _save(self, model: Any) -> None:
        if self.work.get("zero", {}).get("stage") == 3:
            model._zero3_consolidated_16bit_state_dict()
        else:
            {name: tensor.cpu() for name, tensor in model.state_dict().items()}


def train_with_trainer(run: Run, begin: Callable[[], None], end: Callable[[float], None], folder: str) -> None:
    """The HF Trainer over samples of log-normal length, padded to the longest of their batch; evaluates and saves."""
    from transformers import Trainer, TrainerCallback, TrainingArguments
    lengths = torch.empty(2000).log_normal_(6.3, 0.6, generator=run.generator).clamp(64, 2048).long()
    if "lengths" in run.work:
        lengths = lengths // 16
    samples = [{"input_ids": torch.randint(3, VOCABULARY, (int(length),), generator=run.generator)} for length in lengths]

    def collate(rows: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
        tokens = torch.nn.utils.rnn.pad_sequence([row["input_ids"] for row in rows], batch_first=True)
        return {"input_ids": tokens, "labels": tokens}

    class Meter(TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            begin()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            end(0.0)

    trainer = Trainer(model=run.model, args=TrainingArguments(
        output_dir=folder, max_steps=run.num_steps, per_device_train_batch_size=run.work["batch"], per_device_eval_batch_size=4,
        bf16=run.device == "cuda", use_cpu=run.device == "cpu", eval_strategy="steps", eval_steps=5, save_steps=10, save_only_model=True, seed=0,
        gradient_checkpointing=True, optim="adamw_torch", report_to=[], logging_steps=1, disable_tqdm=True, dataloader_pin_memory=False),
        train_dataset=samples, eval_dataset=samples[:16], data_collator=collate, callbacks=[Meter()])
    trainer.train()
    for entry in trainer.state.log_history:
        if "loss" in entry:
            end(entry["loss"])


def make_model(work: dict[str, Any], device: str) -> Any:
    """A Llama of 1.33 B parameters where nothing else is said, the same with LoRA; a T5 of 0.7 B; a Qwen3-MoE."""
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM, T5Config, T5ForConditionalGeneration
    hidden, layers = work.get("hidden", 2048), work.get("layers", 24)
    shape = {"hidden_size": hidden, "intermediate_size": hidden * 21 // 8, "num_hidden_layers": layers,
             "num_attention_heads": hidden // 128, "vocab_size": VOCABULARY, "use_cache": False, "attn_implementation": "sdpa"}
    # The Trainer and FSDP2 keep float32 parameters and compute in bf16.
    single = device == "cpu" or work.get("kind") in ("trainer", "fsdp2")
    with _default_dtype(torch.float32 if single else torch.bfloat16), torch.device(device):
        kind = work.get("kind")
        if kind == "t5":
            return T5ForConditionalGeneration(T5Config(
                d_model=hidden // 2, d_kv=64, d_ff=hidden * 2, num_layers=layers, num_heads=hidden // 128, vocab_size=VOCABULARY,
                use_cache=False, decoder_start_token_id=0, dropout_rate=0.0))
        if kind == "moe":
            config = Qwen3MoeConfig(**shape, num_key_value_heads=hidden // 256 or 1, head_dim=128, num_experts=32, num_experts_per_tok=4,
                                    moe_intermediate_size=hidden)
            config._experts_implementation = work.get("experts", "eager")
            return Qwen3MoeForCausalLM(config)
        model = LlamaForCausalLM(LlamaConfig(**shape))
        if kind == "lora":
            from peft import LoraConfig, get_peft_model
            model.enable_input_require_grads()
            model = get_peft_model(model, LoraConfig(r=16, target_modules=["q_proj", "v_proj", "up_proj", "down_proj"]))
        return model


def _shard(model: Any) -> None:
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    if not torch.distributed.is_initialized():
        torch.distributed.init_process_group("nccl" if torch.cuda.is_available() else "gloo")
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in model.model.layers:
        fully_shard(layer, mp_policy=policy)
    fully_shard(model, mp_policy=policy)


@contextlib.contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
