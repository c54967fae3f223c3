"""CUDA graphs and memory pools."""

from __future__ import annotations

import gc
import threading

import torch
from features_figures import byte_tensor
from gpu_helpers import Training
from parity import FeatureTable

features = FeatureTable("graphs")
WHY = "what is asked for during a capture or for a pool belongs to torch's allocator"


@features("torch.cuda.graph: capture and replay", why=WHY)
def capture(side):
    static = torch.ones(1000, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        inner = static * 3
        output = inner + 1
    rows = []
    for value in (2.0, 5.0):
        static.fill_(value)
        noise = [torch.full((1000,), -1.0, device="cuda") for _ in range(50)]
        graph.replay()
        rows.append([float(output.sum()), sum(float(block.sum()) for block in noise)])
    del inner, output
    return rows


@features("a whole training step captured, with frees inside", why=WHY)
def captured_training(side):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(32, 64, device="cuda", generator=torch.Generator("cuda").manual_seed(1))
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            optimizer.zero_grad(set_to_none=True)
            model(x).square().mean().backward()
            optimizer.step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    optimizer.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
    losses = []
    for _ in range(5):
        graph.replay()
        losses.append(loss.item())
    return losses


@features("two graphs that share a pool, and graph.pool()", why=WHY)
def shared_pool(side):
    static = torch.ones(1000, device="cuda")
    first, second = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(first):
        middle = static + 1
    with torch.cuda.graph(second, pool=first.pool()):
        output = middle * 2
    static.fill_(4)
    first.replay()
    second.replay()
    return float(output.sum())


@features("make_graphed_callables", why=WHY)
def graphed_callables(side):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8)).cuda()
    graphed = torch.cuda.make_graphed_callables(model, (torch.randn(32, 64, device="cuda"),))
    rows = []
    for seed in range(4):
        inputs = torch.randn(32, 64, device="cuda", generator=torch.Generator("cuda").manual_seed(seed))
        model.zero_grad(set_to_none=True)
        graphed(inputs).square().mean().backward()
        rows.append([float(parameter.grad.double().sum()) for parameter in model.parameters()])
    return rows


@features("frees and requests of another thread during a capture",
          why="frees that would wait for a stream are held back until the capture ends")
def capture_beside_a_thread(side):
    other = torch.cuda.Stream()
    recorded = [torch.ones(10_000, device="cuda") for _ in range(20)]
    for index in range(20):
        recorded[index].record_stream(other)
    capturing, done = threading.Event(), threading.Event()

    def disturb() -> None:
        capturing.wait(60)
        while recorded:
            recorded.pop()
            torch.empty(10_000, device="cuda")
        done.set()

    static = torch.ones(1000, device="cuda")
    graph = torch.cuda.CUDAGraph()
    thread = threading.Thread(target=disturb)
    thread.start()
    with torch.cuda.graph(graph):
        first = static + 1
        capturing.set()
        done.wait(60)
        output = first * 2
    thread.join()
    graph.replay()
    return float(output.sum())


@features("torch.cuda.MemPool and use_mem_pool", why=WHY)
def memory_pool(side):
    pool = torch.cuda.MemPool()
    elsewhere: list[torch.Tensor] = []
    with torch.cuda.use_mem_pool(pool):
        inside = torch.ones(100_000, device="cuda")
        thread = threading.Thread(target=lambda: elsewhere.append(torch.ones(100_000, device="cuda")))
        thread.start()
        thread.join()
    outside = torch.ones(100_000, device="cuda")
    ranges = [(segment["address"], segment["address"] + segment["total_size"]) for segment in pool.snapshot()]
    rows = [[any(begin <= tensor.data_ptr() < end for begin, end in ranges) for tensor in (inside, elsewhere[0], outside)],
            pool.use_count(),
            torch._C._has_Standard_Deleter(inside.untyped_storage()._cdata), float((inside + outside).sum())]
    before = torch.cuda.memory_reserved()
    del inside, pool
    gc.collect()
    torch.cuda.empty_cache()
    return [*rows, torch.cuda.memory_reserved() < before]


@features("training beside a graph that is replayed in turn", why=WHY)
def training_beside_a_graph(side):
    static = byte_tensor(1000).fill_(1).float()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = static * 2
    training = Training(width=128)
    losses = []
    for value in range(6):
        static.fill_(value)
        losses.append(training.step())
        graph.replay()
        losses.append(float(output.sum()))
    return losses


@features("the error of a capture that allocates what it must not", why="torch's own error")
def broken_capture(side):  # the last one: torch leaves the stream of the capture current
    static = torch.ones(1000, device="cuda")
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            float((static + 1).sum())  # a synchronization
    except Exception as error:
        text = type(error).__name__
    else:
        text = "no error"
    torch.cuda.synchronize()
    return [text, float((static + 1).sum())]
