"""Other processes: those that share memory with us, children, and runs where we have to stay off."""

from __future__ import annotations

import os

import pytest
import torch
import torch.multiprocessing
from gpu_helpers import MIB


def add_one(queue, done) -> None:
    tensor = queue.get()
    tensor += 1
    torch.cuda.synchronize()
    done.put(float(tensor.sum()))
    del tensor


def test_a_served_tensor_is_shared_with_another_process(arena):
    arena.open(32 * MIB)
    first, tensor = torch.zeros(5000, device="cuda"), torch.ones(1000, device="cuda")
    assert arena.holds(tensor)
    context = torch.multiprocessing.get_context("spawn")
    queue, done = context.Queue(), context.Queue()
    process = context.Process(target=add_one, args=(queue, done))
    process.start()
    queue.put(tensor)
    assert done.get(timeout=120) == 2000
    process.join()
    assert process.exitcode == 0
    assert bool((tensor == 2).all()) and bool((first == 0).all())


def test_a_forked_child_leaves_the_arena_alone(arena):
    arena.open(32 * MIB)
    held = [torch.ones(1000, device="cuda") for _ in range(8)]
    assert arena.holds(held[0])
    child = os.fork()
    if child == 0:
        held.clear()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert all(bool((tensor == 1).all()) for tensor in held)
    assert arena.num_bad_frees() == 0


def test_installing_before_cuda_starts_makes_no_cuda_call(run_python):
    out = run_python(
        """
        import os, torch
        from stalloc_accel import extension
        module = extension.load("cuda")
        module.install()
        module.engine(0)
        assert not torch.cuda.is_initialized()
        child = os.fork()
        if child == 0:   # a fork before CUDA starts may use CUDA
            os._exit(0 if float(torch.ones(10, device="cuda").sum()) == 10 else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        x = torch.ones(1000, device="cuda")
        assert torch.cuda.memory_allocated() == 4096
        assert torch._C._has_Standard_Deleter(x.untyped_storage()._cdata)
        print(torch.cuda.get_allocator_backend())
        """
    )
    assert out == "native"


def test_exit_with_live_served_tensors_and_open_fences_is_clean(run_python):
    out = run_python(
        """
        import torch
        from stalloc_accel import _core, extension
        early = torch.ones(1000, device="cuda")
        module = extension.load("cuda")
        module.install()
        engine = module.engine(0)
        kept = []
        def step():
            kept[:] = [torch.ones(1000, device="cuda") for _ in range(8)]
        step(); engine.end_step(); engine.start_recording(10000)
        for _ in range(3):
            step(); engine.end_step()
        assert engine.activate(_core.build_plan(engine.recorded(), False), 0)
        step()
        assert engine.stats()["slot_hits"] > 0
        side = torch.cuda.Stream()
        gone = torch.ones(1000, device="cuda")
        gone.record_stream(side)
        with torch.cuda.stream(side):
            torch.cuda._sleep(1_000_000_000)
        del gone
        print(float(sum(t.sum() for t in kept) + early.sum()))
        """
    )
    assert out == "9000.0"


@pytest.mark.parametrize(
    ("environment", "reason"),
    [
        ({"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}, "does not cache memory"),
        ({"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"}, "only torch's native CUDA allocator"),
    ],
)
def test_where_we_have_to_stay_off_install_says_why(run_python, environment, reason):
    out = run_python(
        """
        import torch
        from stalloc_accel import extension
        module = extension.load("cuda")
        try:
            module.install()
        except ValueError as error:
            print(error)
        assert not module.is_installed()
        assert float(torch.ones(10, device="cuda").sum()) == 10
        """,
        environment,
    )
    assert reason in out


def test_expandable_segments_carry_an_arena(run_python):
    out = run_python(
        """
        import torch
        from stalloc_accel import _core, extension
        module = extension.load("cuda")
        module.install()
        engine = module.engine(0)
        def step():
            return [torch.full((100_000,), float(i), device="cuda") for i in range(8)]
        step(); engine.end_step(); engine.start_recording(10000)
        for _ in range(3):
            step(); engine.end_step()
        torch.cuda.empty_cache()
        assert engine.activate(_core.build_plan(engine.recorded(), False), 0)
        kept = step()
        assert engine.stats()["slot_hits"] == 8, engine.stats()
        total = float(sum(t.sum() for t in kept))
        snapshot = torch.cuda.memory._snapshot()
        assert sum(s["allocated_size"] for s in snapshot["segments"]) == torch.cuda.memory_allocated()
        print(total)
        """,
        {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
    )
    assert out == "2800000.0"
