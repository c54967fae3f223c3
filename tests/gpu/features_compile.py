"""torch.compile: plain, and with CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable

import torch
from parity import FeatureTable

features = FeatureTable("compile")


def losses_of(side, mode: str | None, run: Callable[..., list[float]]) -> list[float]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    layers = [torch.nn.Linear(128, 128), torch.nn.GELU(), torch.nn.LayerNorm(128), torch.nn.Linear(128, 1)]
    model = torch.nn.Sequential(*layers).to(side.device)
    compiled = torch.compile(model, mode=mode)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    generator = torch.Generator(side.device).manual_seed(1)

    def step() -> float:
        torch.compiler.cudagraph_mark_step_begin()
        inputs = torch.randn(64, 128, device=side.device, generator=generator)
        loss = compiled(inputs).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    try:
        return run(step, 10)
    finally:
        torch._dynamo.reset()  # else what was compiled keeps its tensors


@features("torch.compile", arena_bytes=0, seconds=150, tolerance=1e-5)
def default_mode(side):
    return losses_of(side, None, side.train)


@features("torch.compile(mode='reduce-overhead')", seconds=150, tolerance=1e-5,
          why="the memory of its graphs belongs to torch's allocator; the rest is served")
def reduce_overhead(side):
    return losses_of(side, "reduce-overhead", lambda step, num_steps: [step() for _ in range(num_steps)])
