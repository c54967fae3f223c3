"""A model and batches small enough that a step takes milliseconds; same everywhere, so that losses can be compared."""

import os

import torch
from torch import nn

NUM_FEATURES = 32


def make_model() -> nn.Module:
    torch.manual_seed(0)
    width = int(os.environ.get("MODEL_WIDTH", 64))
    return nn.Sequential(nn.Linear(NUM_FEATURES, width), nn.GELU(), nn.Linear(width, width), nn.GELU(), nn.Linear(width, 1))


def make_batches(count: int) -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(1)
    return [torch.randn(8, NUM_FEATURES, generator=draw) for _ in range(count)]
