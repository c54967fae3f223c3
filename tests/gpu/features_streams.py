"""Streams, threads and devices."""

from __future__ import annotations

import threading
import time

import torch
from features_figures import byte_tensor
from gpu_helpers import Training
from parity import MIB, FeatureTable, Unavailable

features = FeatureTable("streams")
COUNT = 100_000


@features("Tensor.record_stream: the memory is not given out before the other stream is done")
def record_stream(side):
    other = torch.cuda.Stream()
    rows = []
    for _ in range(3):
        source = torch.ones(COUNT, device="cuda")
        copy = torch.zeros_like(source)
        other.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(other):
            torch.cuda._sleep(50_000_000)
            copy.copy_(source)
        source.record_stream(other)
        del source
        noise = [torch.full((COUNT,), 2.0, device="cuda") for _ in range(4)]
        torch.cuda.synchronize()
        rows.append([float(copy.sum()), sum(float(block.sum()) for block in noise)])
    return rows


@features("several streams that produce and consume", why="each stream has an arena of its own; none is shared without a wait")
def several_streams(side):
    streams = [torch.cuda.Stream() for _ in range(4)]
    base = torch.arange(COUNT, device="cuda", dtype=torch.float64)
    parts = []
    for round_number in range(20):
        for index, stream in enumerate(streams):
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                part = (base * (index + round_number)).sqrt().sum()
            part.record_stream(torch.cuda.current_stream())
            parts.append(part)
    for stream in streams:
        torch.cuda.current_stream().wait_stream(stream)
    return float(torch.stack(parts).sum())


@features("threads that train at once, each on a stream of its own or on the common one", tolerance=1e-6)
def threads(side):
    losses: dict[int, list[float]] = {}
    errors: list[str] = []

    def work(index: int) -> None:
        try:
            stream = torch.cuda.Stream() if index % 2 else torch.cuda.default_stream()
            with torch.cuda.stream(stream):
                training = trainings[index]
                losses[index] = [training.step() for _ in range(10)]
        except BaseException as error:
            errors.append(repr(error))

    trainings = [Training(seed=index, width=128) for index in range(6)]
    torch.cuda.synchronize()
    workers = [threading.Thread(target=work, args=(index,)) for index in range(6)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return [errors, [losses.get(index) for index in range(6)]]


@features("a backward from several threads over one model")
def backward_in_threads(side):
    torch.manual_seed(0)
    weight = torch.randn(64, 64, device="cuda", requires_grad=True)
    losses = [(weight * (index + 1)).square().sum() for index in range(4)]
    grads: dict[int, float] = {}

    def work(index: int) -> None:
        (grad,) = torch.autograd.grad(losses[index], weight)
        grads[index] = float(grad.double().abs().sum())

    torch.cuda.synchronize()
    workers = [threading.Thread(target=work, args=(index,)) for index in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return [grads[index] for index in range(4)]


class Numbers(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 256

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((64,), float(index))


@features("DataLoader with pin_memory, workers and non-blocking copies", seconds=90)
def data_loader(side):
    loader = torch.utils.data.DataLoader(Numbers(), batch_size=16, num_workers=2, pin_memory=side.device == "cuda")
    torch.manual_seed(0)
    model = torch.nn.Linear(64, 1).to(side.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    losses = []
    for batch in loader:
        loss = model(batch.to(side.device, non_blocking=True)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@features("copies to the CPU that run while the source is freed")
def copies_to_the_host(side):
    totals = []
    for value in range(6):
        source = torch.full((COUNT,), float(value), device="cuda")
        host = torch.empty(COUNT, pin_memory=True)
        host.copy_(source, non_blocking=True)
        del source
        noise = torch.full((COUNT,), -1.0, device="cuda")  # on the same stream: behind the copy
        torch.cuda.synchronize()
        totals.append([float(host.sum()), float(noise.sum())])
    return totals


@features("a host that is far ahead of the device", why="no request and no free waits for the device")
def host_ahead(side):
    torch.cuda.synchronize()
    torch.cuda._sleep(400_000_000)
    begun = time.perf_counter()
    for _ in range(200):
        torch.empty(COUNT, device="cuda")
    seconds = time.perf_counter() - begun
    torch.cuda.synchronize()
    return {"under 0.1 s for 200 pairs": seconds < 0.1}


@features("two devices in one process, copies between them, peer access", why="each device has an engine of its own")
def two_devices(side):
    if torch.cuda.device_count() < 2:
        raise Unavailable("one device; this takes two")
    source = torch.arange(COUNT, device="cuda:0", dtype=torch.float64)
    there = source.to("cuda:1", non_blocking=True)
    doubled = there * 2
    back = doubled.to("cuda:0")
    with torch.cuda.device(1):
        torch.manual_seed(0)
        model = torch.nn.Linear(64, 64, device="cuda:1")
        model(torch.ones(8, 64, device="cuda:1")).sum().backward()
    figures = [torch.cuda.memory_allocated(1) > 0, torch.cuda.can_device_access_peer(0, 1)]
    return [float(back.sum()), float(model.weight.grad.sum()), *figures]


@features("large and small blocks on the current stream after a switch of streams", arena_bytes=256 * MIB)
def switched_streams(side):
    kept, sums = [], []
    other = torch.cuda.Stream()
    for round_number in range(10):
        with torch.cuda.stream(other if round_number % 2 else torch.cuda.default_stream()):
            kept.append(byte_tensor((round_number + 1) * MIB).fill_(round_number))
    torch.cuda.synchronize()
    for block in kept:
        sums.append(int(block.sum(dtype=torch.int64)))
    return sums
