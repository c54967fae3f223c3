"""At the limit: errors, observers, and searches for a batch size."""

from __future__ import annotations

import gc
import re
import tempfile
import threading
from typing import Any

import torch
from features_figures import byte_tensor
from parity import MIB, FeatureTable, without_numbers

features = FeatureTable("limits")


def wording(error: Exception) -> str:
    """The text without numbers, and without the line that the driver's library adds for each other process."""
    return re.sub(r"(Process N has N memory in use\. ?)+", "", without_numbers(str(error)))


def failure(size: int) -> torch.OutOfMemoryError:
    try:
        byte_tensor(size)
    except torch.OutOfMemoryError as error:
        return error
    raise AssertionError(f"{size} bytes fitted")


@features("OutOfMemoryError: class, text, and what Accelerate makes of it")
def the_error(side):
    from accelerate.utils.memory import should_reduce_batch_size

    kept = byte_tensor(MIB)
    side.limit(256 * MIB)
    error = failure(4096 * MIB)
    rows = [type(error).__module__, type(error).__name__, isinstance(error, RuntimeError), isinstance(error, torch.cuda.OutOfMemoryError),
            wording(error), "Tried to allocate 4.00 GiB" in str(error), bool(should_reduce_batch_size(error))]
    del kept, error
    return rows


@features("num_ooms, num_alloc_retries and observers of out-of-memory errors")
def counts(side):
    calls: list[tuple] = []
    torch._C._cuda_attach_out_of_memory_observer(lambda *arguments: calls.append(arguments))
    kept = byte_tensor(MIB)
    side.limit(256 * MIB)
    before = torch.cuda.memory_stats()
    failure(4096 * MIB)
    after = torch.cuda.memory_stats()
    del kept
    return {"grown": [after[key] - before[key] for key in ("num_ooms", "num_alloc_retries")],
            "calls": len(calls), "device": calls[0][0], "size": calls[0][1]}


@features("a request that fits without the arena fits with it", arena_bytes=512 * MIB,
          why="an empty arena is given back before the request is tried, so that nothing counts as failed")
def arena_gives_way(side):
    first = byte_tensor(MIB)
    del first
    side.limit(600 * MIB)
    before = torch.cuda.memory_stats()
    large = torch.ones(560 * MIB, dtype=torch.uint8, device="cuda")
    total = int(large[::MIB].sum())
    after = torch.cuda.memory_stats()
    del large
    return [total, after["num_ooms"] - before["num_ooms"]]


@features("after an error everything is free again, and training goes on", arena_bytes=256 * MIB)
def clean_after_an_error(side):
    base = torch.cuda.memory_allocated()
    warm = byte_tensor(MIB)
    del warm
    side.limit(500 * MIB)
    tried = []
    for size in (4096, 2048, 1024, 128):
        try:
            parts = [byte_tensor(size * MIB // 4) for _ in range(4)]
            tried.append([size, len(parts)])
            del parts
        except torch.OutOfMemoryError:
            tried.append([size, "no"])
    gc.collect()
    return [tried, torch.cuda.memory_allocated() - base]


@features("accelerate: find_executable_batch_size", arena_bytes=64 * MIB)
def batch_size_search(side):
    from accelerate.utils import find_executable_batch_size

    warm = byte_tensor(MIB)
    del warm
    side.limit(200 * MIB)
    tried = []

    @find_executable_batch_size(starting_batch_size=1024)
    def run(batch_size: int) -> int:
        tried.append(batch_size)
        kept = [byte_tensor(batch_size * MIB // 2) for _ in range(2)]
        return len(kept) and batch_size

    return [run(), tried, torch.cuda.memory_allocated() // MIB]


class Hungry(torch.nn.Module):
    """Allocates 8 MiB for each row of the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(4))

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        if x.is_cuda:
            byte_tensor(len(x) * 8 * MIB)
        return {"loss": ((x * self.weight).sum(dim=1) - labels).square().mean()}


@features("transformers: Trainer with auto_find_batch_size", arena_bytes=8 * MIB, seconds=120)
def auto_find_batch_size(side):
    from transformers import Trainer, TrainingArguments

    data: list[dict[str, Any]] = [{"x": torch.full((4,), float(i % 7)), "labels": torch.tensor(float(i % 5))} for i in range(64)]
    if side.device == "cuda":
        side.limit(220 * MIB)  # 25 rows take 200 MiB, and 28 rows, the try before, 224
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(output_dir=folder, per_device_train_batch_size=64, auto_find_batch_size=True, report_to=[],
                                      max_steps=4, save_strategy="no", logging_steps=1, seed=1, disable_tqdm=True,
                                      use_cpu=side.device == "cpu")
        trainer = Trainer(model=Hungry(), args=arguments, train_dataset=data)
        loss = trainer.train().training_loss
    return [loss, trainer._train_batch_size, [log["loss"] for log in trainer.state.log_history if "loss" in log]]


@features("an error inside a backward, and on another thread")
def errors_elsewhere(side):
    class Greedy(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            byte_tensor(4096 * MIB)
            return grad

    base = torch.cuda.memory_allocated()
    side.limit(256 * MIB)
    seen = []
    x = torch.ones(1000, device="cuda", requires_grad=True)
    try:
        Greedy.apply(x).sum().backward()
    except torch.OutOfMemoryError as error:
        seen.append(wording(error)[:60])
    thread = threading.Thread(target=lambda: seen.append(wording(failure(4096 * MIB))[:60]))
    thread.start()
    thread.join()
    del x
    gc.collect()
    return [seen, torch.cuda.memory_allocated() - base]
