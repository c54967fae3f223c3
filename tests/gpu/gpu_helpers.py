"""A model to train, and a look at a tensor's bytes: shared by the GPU tests."""

from __future__ import annotations

import torch

MIB = 1 << 20


class Training:
    """A small model and its optimizer; every step allocates in the same order."""

    def __init__(self, seed: int = 0, width: int = 512) -> None:
        torch.manual_seed(seed)
        self.generator = torch.Generator(device="cuda").manual_seed(seed)
        layers = [torch.nn.Linear(width, width), torch.nn.GELU(), torch.nn.LayerNorm(width)] * 3
        self.model = torch.nn.Sequential(*layers, torch.nn.Linear(width, 16)).cuda()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), foreach=True)
        self.width = width

    def step(self) -> float:
        inputs = torch.randn(256, self.width, device="cuda", generator=self.generator)
        labels = torch.randint(0, 16, (256,), device="cuda", generator=self.generator)
        loss = torch.nn.functional.cross_entropy(self.model(inputs), labels)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.item()


def pattern_is(tensor: torch.Tensor, value: float) -> bool:
    """Whether each element is `value`, compared on the device."""
    return bool((tensor == value).all())
