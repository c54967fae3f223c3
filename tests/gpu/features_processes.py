"""Other processes: memory shared through CUDA IPC, and children."""

from __future__ import annotations

import gc
import io
import os

import torch
import torch.multiprocessing
from parity import FeatureTable

features = FeatureTable("processes")


def add_one(queue, answers, go_on) -> None:
    """In the other process: each tensor that comes is changed and summed."""
    while (tensor := queue.get(timeout=100)) is not None:
        tensor += 1
        torch.cuda.synchronize()
        answers.put(float(tensor.sum()))
        del tensor
        gc.collect()
        torch.cuda.ipc_collect()
    go_on.wait(60)


@features("CUDA IPC through torch.multiprocessing", seconds=150, why="shared as a part of the extent that holds the block")
def ipc(side):
    base = torch.cuda.memory_allocated()
    tensors = [torch.full((1000 * (index + 1),), float(index), device="cuda") for index in range(4)]
    neighbour = torch.zeros(5000, device="cuda")
    context = torch.multiprocessing.get_context("spawn")
    queue, answers, go_on = context.Queue(), context.Queue(), context.Event()
    process = context.Process(target=add_one, args=(queue, answers, go_on))
    process.start()
    sums = []
    for tensor in (*tensors, tensors[2][500:1500].view(10, 100)):
        queue.put(tensor)
        sums.append(answers.get(timeout=120))
    here = [float(tensor.sum()) for tensor in tensors]
    # Given away: the other process is the last to hold it.
    given = torch.full((3000,), 7.0, device="cuda")
    queue.put(given)
    del given
    noise = [torch.full((3000,), -1.0, device="cuda") for _ in range(8)]
    sums.append(answers.get(timeout=120))
    kept = [float(neighbour.sum()), sum(float(block.sum()) for block in noise)]
    queue.put(None)
    go_on.set()
    process.join(60)
    del tensors, tensor, neighbour, noise
    gc.collect()
    torch.cuda.ipc_collect()
    return {"there": sums, "here": here, "neighbours": kept, "exit": process.exitcode,
            "all came back": torch.cuda.memory_allocated() - base}


@features("a child by fork leaves the parent's memory alone")
def fork(side):
    held = [torch.full((1000,), float(index), device="cuda") for index in range(8)]
    torch.cuda.synchronize()
    child = os.fork()
    if child == 0:
        held.clear()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    return [os.waitstatus_to_exitcode(status), [float(block.sum()) for block in held]]


@features("torch.save and torch.load, to the CPU and back")
def save_and_load(side):
    torch.manual_seed(0)
    model = torch.nn.Linear(64, 64).to(side.device)
    buffer = io.BytesIO()
    torch.save(model.state_dict(), buffer)
    buffer.seek(0)
    again = torch.load(buffer, map_location=side.device, weights_only=True)
    buffer.seek(0)
    on_cpu = torch.load(buffer, map_location="cpu", weights_only=True)
    return [all(bool(torch.equal(again[key], value)) for key, value in model.state_dict().items()),
            float(on_cpu["weight"].double().sum())]


@features("DLPack and __cuda_array_interface__ keep the memory alive")
def exchange(side):
    class Holder:
        def __init__(self, tensor: torch.Tensor) -> None:
            self.tensor, self.__cuda_array_interface__ = tensor, tensor.__cuda_array_interface__

    source = torch.arange(1000, device="cuda", dtype=torch.float32)
    view = torch.from_dlpack(source)
    array = torch.as_tensor(Holder(source), device="cuda")
    same = [view.data_ptr() == source.data_ptr(), array.data_ptr() == source.data_ptr()]
    del source
    noise = [torch.full((1000,), -1.0, device="cuda") for _ in range(8)]
    return [same, float(view.sum()), float(array.sum()), sum(float(block.sum()) for block in noise)]
