"""Trains real models on a CUDA device with torch's own allocator, with expandable segments, and with us, first and second run.

    python benchmarks/gpu_training.py [--workloads dense,dense_ckpt,...] [--out results.json]

Each run is a process of its own with the same seed; the worker is a script that does not know us. Prints a table and
writes everything it measured as JSON with the versions.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ALLOCATORS = ("native", "expandable", "first", "second")
SETTLED_STEP = 7  # peaks and times count from here on: the first run is active before

WORKLOADS: dict[str, dict[str, Any]] = {
    "dense": {"batch": 8, "lengths": [2048], "steps": 16},
    "dense_ckpt": {"batch": 16, "lengths": [2048], "steps": 12, "checkpointing": True},
    "dense_var": {"batch": 8, "lengths": [1024, 1536, 512, 1280, 768, 2048, 1792, 900, 1100, 1333], "steps": 20},
    "zero3_ckpt": {"batch": 8, "lengths": [2048], "steps": 12, "checkpointing": True, "zero_stage": 3},
    "moe_eager": {"kind": "moe", "batch": 4, "lengths": [1024, 768, 1280, 900, 1152, 640, 1024, 1400], "steps": 24,
                  "hidden": 1024, "layers": 8},
    "lora_var": {"kind": "lora", "batch": 8, "lengths": [1024, 1536, 512, 1280, 768, 2048, 1792, 900, 1100, 1333],
                 "steps": 20, "checkpointing": True},
    "tiny": {"batch": 2, "lengths": [128], "steps": 8, "hidden": 256, "layers": 2},
}


def train(name: str, out: Path) -> None:
    """The worker. Nothing in it knows about stalloc."""
    import torch
    work = WORKLOADS[name]
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True, warn_only=work.get("kind") == "moe")
    model = _model(work)
    if work.get("checkpointing"):
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4, foreach=True)
    if "zero_stage" in work:
        update = _zero_update(model, optimizer, work["zero_stage"], work["batch"])
    else:
        def update(tokens: torch.Tensor) -> torch.Tensor:
            loss = model(input_ids=tokens, labels=tokens).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss
    losses, seconds = [], []
    generator = torch.Generator().manual_seed(1)
    for step in range(work["steps"]):
        if step == SETTLED_STEP:
            before = (torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved())
            torch.cuda.reset_peak_memory_stats()
        length = work["lengths"][step % len(work["lengths"])]
        tokens = torch.randint(0, 32000, (work["batch"], length), generator=generator).to("cuda")
        torch.cuda.synchronize()
        began = time.perf_counter()
        loss = update(tokens)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
        losses.append(loss.float().item().hex())
    stats = torch.cuda.memory_stats()
    steady = (torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved())
    out.write_text(json.dumps({
        "losses": losses, "step_seconds": seconds, "steady_allocated": steady[0], "steady_reserved": steady[1],
        "whole_allocated": max(steady[0], before[0]), "whole_reserved": max(steady[1], before[1]),
        "num_alloc_retries": stats["num_alloc_retries"], "num_device_alloc": stats["num_device_alloc"],
        "versions": {"torch": torch.__version__, "device": torch.cuda.get_device_name()},
    }))


def _model(work: dict[str, Any]) -> Any:
    """A Llama of 1.33B parameters where nothing else is said, the same with LoRA, or a Qwen3-MoE with a loop over experts."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM
    hidden = work.get("hidden", 2048)
    shape = {"hidden_size": hidden, "intermediate_size": hidden * 21 // 8, "num_hidden_layers": work.get("layers", 24),
             "num_attention_heads": hidden // 128, "vocab_size": 32000, "use_cache": False, "attn_implementation": "sdpa"}
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        if work.get("kind") == "moe":
            config = Qwen3MoeConfig(**shape, num_key_value_heads=4, head_dim=128, num_experts=32, num_experts_per_tok=4,
                                    moe_intermediate_size=hidden)
            config._experts_implementation = "eager"
            model = Qwen3MoeForCausalLM(config)
        else:
            model = LlamaForCausalLM(LlamaConfig(**shape))
        if work.get("kind") == "lora":
            from peft import LoraConfig, get_peft_model
            model.enable_input_require_grads()
            model = get_peft_model(model, LoraConfig(r=16, target_modules=["q_proj", "v_proj", "up_proj", "down_proj"]))
    torch.set_default_dtype(torch.float32)
    return model


def _zero_update(model: Any, optimizer: Any, stage: int, batch: int) -> Any:
    import deepspeed
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config={
        "train_micro_batch_size_per_gpu": batch, "gradient_accumulation_steps": 1, "bf16": {"enabled": True},
        "zero_optimization": {"stage": stage}, "zero_allow_untested_optimizer": True, "gradient_clipping": 1.0,
        **({"stalloc": {"enabled": True}} if os.environ.get("BENCHMARK_STALLOC") else {}),
    })

    def update(tokens: Any) -> Any:
        loss = engine(input_ids=tokens, labels=tokens).loss
        engine.backward(loss)
        engine.step()
        return loss

    return update


def measure(workload: str, allocator: str, folder: Path, prefix: list[str] | None = None) -> dict[str, Any]:
    """Runs one worker; what it measured, and our own summary where we were at work."""
    out, summary = folder / f"{workload}-{allocator}.json", folder / f"{workload}-{allocator}-summary.json"
    environment = {**os.environ, "CUBLAS_WORKSPACE_CONFIG": ":4096:8", "HF_HUB_OFFLINE": "1", "MASTER_ADDR": "127.0.0.1",
                   "BENCHMARK_OUT": str(out), "MASTER_PORT": "29531", "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
    if allocator == "expandable":
        environment["PYTORCH_ALLOC_CONF"] = environment["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    if allocator in ("first", "second"):
        environment |= {"STALLOC_CACHE_DIR": str(folder / "plans"), "STALLOC_SUMMARY_FILE": str(summary),
                        "BENCHMARK_STALLOC": "1"}
        if "zero_stage" not in WORKLOADS[workload]:  # else the section of the DeepSpeed configuration asks for us
            environment["STALLOC_ENABLED"] = "1"
    command = [*(prefix or []), sys.executable, __file__, "--worker", workload]  # the same command in every run
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=400)
    log = (done.stderr + done.stdout)[-6000:]
    if done.returncode != 0 or not out.exists():
        print(f"{workload} {allocator} FAILED rc={done.returncode}\n{log}", flush=True)
        return {"failed": done.returncode, "log": log}
    result = json.loads(out.read_text())
    result["log"] = [line for line in log.splitlines() if "stalloc" in line.lower() or "ERROR SUMMARY" in line]
    if summary.exists():
        result["summary"] = json.loads(summary.read_text())
    return result


def row(workload: str, allocator: str, result: dict[str, Any], native: dict[str, Any]) -> str:
    if "failed" in result:
        return f"{workload:12} {allocator:10} FAILED"
    seconds = statistics.median(result["step_seconds"][SETTLED_STEP:])
    baseline = statistics.median(native["step_seconds"][SETTLED_STEP:]) if "step_seconds" in native else seconds
    summary = result.get("summary", {})
    same = "same" if result["losses"] == native.get("losses") else "DIFFERENT"
    return (f"{workload:12} {allocator:10} E whole {result['whole_allocated'] / result['whole_reserved']:.4f} steady "
            f"{result['steady_allocated'] / result['steady_reserved']:.4f} reserved {result['whole_reserved'] / 2**30:7.2f}"
            f" allocated {result['whole_allocated'] / 2**30:7.2f} GiB, step {seconds * 1e3:8.1f} ms ({seconds / baseline:.4f})"
            f", losses {same} {summary.get('state', '')} {summary.get('activated_at_step', '')}"
            f" hits {summary.get('hit_rate')} {summary.get('fallbacks', '')} {summary.get('reason', '')}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worker", choices=sorted(WORKLOADS))
    parser.add_argument("--workloads", default="dense,dense_ckpt,dense_var,zero3_ckpt")
    parser.add_argument("--allocators", default=",".join(ALLOCATORS))
    parser.add_argument("--memcheck", action="store_true", help="also run the tiny workload under compute-sanitizer")
    parser.add_argument("--out", type=Path, default=Path("gpu_training.json"))
    args = parser.parse_args()
    if args.worker:
        train(args.worker, Path(os.environ.get("BENCHMARK_OUT", args.out)))
        return 0
    results: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as name:
        for workload in args.workloads.split(","):
            results[workload] = {}
            for allocator in args.allocators.split(","):
                result = measure(workload, allocator, Path(name))
                results[workload][allocator] = result
                print(row(workload, allocator, result, results[workload].get("native", {})), flush=True)
                for line in result["log"] if isinstance(result["log"], list) else []:
                    print("    " + line[:200], flush=True)
                args.out.write_text(json.dumps(results, indent=1))
        if args.memcheck:
            measure("tiny", "first", Path(name))
            result = measure("tiny", "second", Path(name), ["compute-sanitizer", "--tool", "memcheck"])
            results["memcheck"] = result
            print("memcheck", [line for line in result["log"] if "ERROR SUMMARY" in line] or result["log"], result.get("summary", {}).get("state"),
                  "hits", result.get("summary", {}).get("hit_rate"))
            args.out.write_text(json.dumps(results, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
