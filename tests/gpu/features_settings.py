"""One training run under each of the settings of torch's allocator that users set."""

from __future__ import annotations

import torch
from features_figures import byte_tensor
from gpu_helpers import Training
from parity import MIB, FeatureTable, without_numbers


def conf(value: str) -> dict[str, str]:
    return {"PYTORCH_CUDA_ALLOC_CONF": value, "PYTORCH_ALLOC_CONF": value}


features = FeatureTable("settings", {
    "expandable_segments": conf("expandable_segments:True"),
    "max_split_size_mb:64": conf("max_split_size_mb:64"),
    "garbage_collection_threshold:0.6": conf("garbage_collection_threshold:0.6"),
    "roundup_power2_divisions:4": conf("roundup_power2_divisions:4"),
    "cudaMallocAsync": conf("backend:cudaMallocAsync"),
    "PYTORCH_NO_CUDA_MEMORY_CACHING": {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
}, refused=("cudaMallocAsync", "PYTORCH_NO_CUDA_MEMORY_CACHING"))


@features("a training run and its figures", arena_bytes=0)
def training(side):
    training = Training(width=256)
    base = torch.cuda.memory_allocated()
    losses = side.train(training.step, 12)
    return {"losses": losses, "grown by the optimizer's state": torch.cuda.memory_allocated() > base}


@features("large blocks, small blocks and a snapshot",
          why="ours rounds requests up to 512 bytes whatever roundup_power2_divisions says")
def blocks(side):
    kept = [byte_tensor(size).fill_(index) for index, size in enumerate((1000, 300_000, 3 * MIB, 30 * MIB, 150 * MIB))]
    sums = [int(block.sum(dtype=torch.int64)) for block in kept]
    try:
        total = sum(segment["allocated_size"] for segment in torch.cuda.memory_snapshot())
    except RuntimeError as error:  # cudaMallocAsync has none
        return {"sums": sums, "snapshot": without_numbers(str(error).splitlines()[0])}
    return {"sums": sums, "snapshot agrees": total == torch.cuda.memory_allocated()}
