"""NCCL, DDP and FSDP2: with one rank in this process, and with two where there are two devices."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing
from parity import FeatureTable, Unavailable

REGISTER = "TORCH_NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK"
features = FeatureTable("distributed", {"": {}, "registered buffers": {REGISTER: "1"}})


@contextmanager
def group(rank: int = 0, world_size: int = 1, folder: str | None = None, backend: str = "nccl") -> Iterator[None]:
    if dist.is_initialized():
        yield
        return
    with tempfile.TemporaryDirectory() as own:
        device = {"device_id": torch.device("cuda", rank)} if backend == "nccl" else {}
        dist.init_process_group(backend, init_method=f"file://{Path(folder or own, 'rendezvous')}", rank=rank,
                                world_size=world_size, **device)
        try:
            yield
        finally:
            # A destroyed group's hook would still be told of segments, and torch's own empty_cache fail with it.
            if REGISTER not in os.environ:
                dist.destroy_process_group()


def one_rank(side):
    return group(backend="nccl" if side.device == "cuda" else "gloo")


def layers(device: str) -> torch.nn.Sequential:
    torch.manual_seed(0)
    return torch.nn.Sequential(*[torch.nn.Sequential(torch.nn.Linear(128, 128), torch.nn.GELU()) for _ in range(3)],
                               torch.nn.Linear(128, 1)).to(device)


def step_of(model: torch.nn.Module, device: str, seed: int = 1):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True)
    generator = torch.Generator(device).manual_seed(seed)

    def step() -> float:
        loss = model(torch.randn(32, 128, device=device, generator=generator)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    return step


@features("collectives: all_reduce, all_gather, reduce_scatter, broadcast, async_op")
def collectives(side):
    rows = []
    with one_rank(side):
        for round_number in range(4):
            tensor = torch.full((10_000,), float(round_number), device=side.device)
            work = dist.all_reduce(tensor, async_op=True)
            noise = [torch.full((10_000,), -1.0, device=side.device) for _ in range(4)]
            work.wait()
            gathered = torch.empty_like(tensor)
            dist.all_gather_into_tensor(gathered, tensor)
            scattered = torch.empty_like(tensor)
            dist.reduce_scatter_tensor(scattered, gathered * 2)
            dist.broadcast(scattered, 0)
            rows.append([float(tensor.sum()), float(scattered.sum()), sum(float(block.sum()) for block in noise)])
            del tensor, gathered, scattered, work, noise
    return rows


@features("collectives whose tensors are freed before they are waited for",
          why="NCCL keeps or records what it uses; a recorded block comes back when its stream is done")
def freed_before_the_wait(side):
    with one_rank(side):
        works, outputs = [], []
        for index in range(8):
            source, target = torch.full((50_000,), float(index), device=side.device), torch.empty(50_000, device=side.device)
            works.append(dist.all_gather_into_tensor(target, source, async_op=True))
            outputs.append(target)
            del source
            torch.full((50_000,), -1.0, device=side.device)
        for work in works:
            work.wait()
        return [float(output.sum()) for output in outputs]


@features("coalesced collectives")
def coalesced(side):
    with one_rank(side):
        tensors = [torch.full((1000 * (index + 1),), float(index), device=side.device) for index in range(6)]
        with dist._coalescing_manager(async_ops=True) as manager:
            for tensor in tensors:
                dist.all_reduce(tensor)
        manager.wait()
        return [float(tensor.sum()) for tensor in tensors]


@features("DistributedDataParallel", arena_bytes=0, tolerance=1e-6)
def ddp(side):
    with one_rank(side):
        model = torch.nn.parallel.DistributedDataParallel(layers(side.device), bucket_cap_mb=1)
        return side.train(step_of(model, side.device), 8)


@features("FSDP2: fully_shard", arena_bytes=0, tolerance=1e-6)
def fsdp2(side):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    with one_rank(side):
        mesh = init_device_mesh(side.device, (1,))
        model = layers(side.device)
        for layer in model:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        return side.train(step_of(model, side.device), 8)


@features("a memory pool of NCCL's own allocator", served=False,
          why="a pool with an allocator of its own is torch's and NCCL's matter")
def nccl_pool(side):
    with one_rank(side):
        backend = dist.group.WORLD._get_backend(torch.device("cuda", 0))
        try:
            pool = torch.cuda.MemPool(backend.mem_allocator)
        except (AttributeError, RuntimeError) as error:
            if "mem_allocator" not in str(error) and "not supported" not in str(error):
                raise
            raise Unavailable(f"torch {torch.__version__}: {str(error).splitlines()[0]}") from error
        with torch.cuda.use_mem_pool(pool):
            tensor = torch.full((100_000,), 2.0, device="cuda")
        dist.all_reduce(tensor)
        total = float(tensor.sum())
        inside = any(s["address"] <= tensor.data_ptr() < s["address"] + s["total_size"] for s in pool.snapshot())
        del tensor, pool
        return [total, inside]


def rank_of_two(rank: int, side_name: str, folder: str, answers) -> None:
    from side import make_side

    torch.cuda.set_device(rank)
    side = make_side(side_name, rank)
    with group(rank, 2, folder):
        model = torch.nn.parallel.DistributedDataParallel(layers(f"cuda:{rank}"), device_ids=[rank], bucket_cap_mb=1)
        losses = side.train(step_of(model, f"cuda:{rank}", seed=rank), 8)
    answers.put([rank, losses])


@features("two ranks with DistributedDataParallel", seconds=150, served=False, tolerance=1e-6, arena_bytes=0)
def two_ranks(side):
    if torch.cuda.device_count() < 2:
        raise Unavailable("one device; this takes two")
    context = torch.multiprocessing.get_context("spawn")
    answers = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        processes = [context.Process(target=rank_of_two, args=(rank, side.name, folder, answers)) for rank in range(2)]
        for process in processes:
            process.start()
        rows = sorted(answers.get(timeout=140) for _ in processes)
        for process in processes:
            process.join(60)
    return rows
