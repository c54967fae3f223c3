"""Ways to train with torch alone: each loss of each step."""

from __future__ import annotations

import torch
from parity import MIB, FeatureTable

features = FeatureTable("training")


def blocks(device: str, width: int = 128, depth: int = 4) -> torch.nn.ModuleList:
    torch.manual_seed(0)
    return torch.nn.ModuleList(
        torch.nn.Sequential(torch.nn.LayerNorm(width), torch.nn.Linear(width, 4 * width), torch.nn.GELU(),
                            torch.nn.Linear(4 * width, width), torch.nn.Dropout(0.1))
        for _ in range(depth)
    ).to(device)


def trainer(side, forward, parameters, batch: int = 64, width: int = 128, lengths: tuple[int, ...] = ()):
    """A step that trains `forward` on random inputs; `lengths` are the sizes of its batches in turn."""
    optimizer = torch.optim.AdamW(parameters, lr=1e-3, foreach=True)
    generator = torch.Generator(side.device).manual_seed(1)
    counter = iter(range(10_000))

    def step() -> float:
        rows = lengths[next(counter) % len(lengths)] if lengths else batch
        loss = forward(torch.randn(rows, width, device=side.device, generator=generator)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    return step


def run_through(model, call=lambda block, x: block(x)):
    def forward(x: torch.Tensor) -> torch.Tensor:
        for block in model:
            x = call(block, x)
        return x

    return forward


@features("a plain loop with AdamW(foreach=True)", arena_bytes=0)
def plain(side):
    model = blocks(side.device)
    return side.train(trainer(side, run_through(model), model.parameters()), 12)


@features("batches of other lengths", arena_bytes=0)
def lengths(side):
    model = blocks(side.device)
    return side.train(trainer(side, run_through(model), model.parameters(), lengths=(64, 32, 96, 48, 80)), 15)


@features("torch.utils.checkpoint, with and without use_reentrant", arena_bytes=0)
def checkpoint(side):
    from torch.utils.checkpoint import checkpoint

    losses = []
    for reentrant in (False, True):
        model = blocks(side.device)

        def call(block, x, reentrant=reentrant):
            return checkpoint(block, x, use_reentrant=reentrant)

        def forward(x, model=model, call=call):
            return run_through(model, call)(x.requires_grad_())

        losses.append(side.train(trainer(side, forward, model.parameters()), 8))
        side.close()
    return losses


@features("activations kept on the CPU: torch.autograd.graph.save_on_cpu(pin_memory=True)", arena_bytes=0)
def offloading(side):
    model = blocks(side.device)

    def forward(x: torch.Tensor) -> torch.Tensor:
        with torch.autograd.graph.save_on_cpu(pin_memory=side.device == "cuda"):
            return run_through(model)(x)

    return side.train(trainer(side, forward, model.parameters()), 8)


@features("autocast to bfloat16 and float16 with a GradScaler", arena_bytes=0, tolerance=1e-6)
def mixed_precision(side):
    losses = []
    for dtype in (torch.bfloat16, torch.float16):
        model = blocks(side.device)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        scaler = torch.amp.GradScaler(side.device, enabled=dtype is torch.float16)
        generator = torch.Generator(side.device).manual_seed(1)

        def step(model=model, optimizer=optimizer, scaler=scaler, generator=generator, dtype=dtype) -> float:
            with torch.autocast(side.device, dtype=dtype):
                loss = run_through(model)(torch.randn(64, 128, device=side.device, generator=generator)).float().square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            return loss.item()

        losses.append(side.train(step, 8))
        side.close()
    return losses


@features("accumulation of gradients, and an evaluation in between", arena_bytes=0)
def accumulation(side):
    model = blocks(side.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    generator = torch.Generator(side.device).manual_seed(1)
    counter = iter(range(100))

    def batch() -> torch.Tensor:
        return torch.randn(64, 128, device=side.device, generator=generator)

    def step() -> list[float]:
        rows = []
        for _ in range(3):
            loss = run_through(model)(batch()).square().mean() / 3
            loss.backward()
            rows.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
        if next(counter) % 4 == 3:
            with torch.no_grad():
                rows.append(run_through(model)(batch()).square().mean().item())
        return rows

    return side.train(step, 10)


@features("convolutions with torch.backends.cudnn.benchmark, in float32 and channels_last", arena_bytes=256 * MIB, tolerance=1e-2,
          why="cuDNN picks its algorithms by time, so losses agree to within their rounding; it is told of the arena's gaps")
def cudnn_benchmark(side):
    before, torch.backends.cudnn.benchmark = torch.backends.cudnn.benchmark, True
    try:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Conv2d(3, 32, 3, padding=1), torch.nn.BatchNorm2d(32), torch.nn.ReLU(),
                                    torch.nn.Conv2d(32, 32, 3, padding=1), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(1),
                                    torch.nn.Flatten(), torch.nn.Linear(32, 10))
        model = model.to(side.device, memory_format=torch.channels_last)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        generator = torch.Generator(side.device).manual_seed(1)
        losses = []
        for _ in range(6):
            images = torch.randn(16, 3, 64, 64, device=side.device, generator=generator)
            loss = model(images.to(memory_format=torch.channels_last)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
        return losses
    finally:
        torch.backends.cudnn.benchmark = before


@features("recurrent layers of cuDNN with their reserve space", arena_bytes=64 * MIB, tolerance=1e-5)
def recurrent(side):
    torch.manual_seed(0)
    model = torch.nn.LSTM(64, 64, num_layers=2, batch_first=True).to(side.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator(side.device).manual_seed(1)
    losses = []
    for _ in range(5):
        loss = model(torch.randn(8, 20, 64, device=side.device, generator=generator))[0].square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@features("fused optimizers, gradient clipping and a learning-rate schedule", arena_bytes=0)
def fused_optimizer(side):
    model = blocks(side.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
    generator = torch.Generator(side.device).manual_seed(1)

    def step() -> float:
        loss = run_through(model)(torch.randn(64, 128, device=side.device, generator=generator)).square().mean()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        return loss.item() + norm.item()

    return side.train(step, 10)


@features("attention by scaled_dot_product_attention, and an embedding with sparse gradients", arena_bytes=0, tolerance=1e-4)
def attention(side):
    torch.manual_seed(0)
    embedding = torch.nn.Embedding(1000, 64, sparse=True).to(side.device)
    layer = torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, dropout=0.0).to(side.device)
    dense = torch.optim.AdamW(layer.parameters(), lr=1e-3)
    sparse = torch.optim.SparseAdam(list(embedding.parameters()), lr=1e-3)
    generator = torch.Generator(side.device).manual_seed(1)

    def step() -> float:
        tokens = torch.randint(0, 1000, (8, 32), device=side.device, generator=generator)
        loss = layer(embedding(tokens)).square().mean()
        loss.backward()
        dense.step()
        sparse.step()
        dense.zero_grad()
        sparse.zero_grad()
        return loss.item()

    return side.train(step, 8)
