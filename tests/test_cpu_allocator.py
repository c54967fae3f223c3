"""The engine as torch's CPU allocator, with real tensors, training steps, threads and worker processes."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
import traceback

import pytest
import torch
from arena import Arena
from torch.utils.data import DataLoader, Dataset

from stalloc_accel import _core, extension

CAPACITY_EVENTS = 1 << 20


@pytest.fixture(scope="module")
def module():
    loaded = extension.load("cpu")
    loaded.install()
    return loaded


@pytest.fixture
def engine(module):
    engine = module.engine(0)
    engine.set_serve_gaps(True)
    yield engine
    engine.stop_recording()
    engine.deactivate()
    engine.set_serve_gaps(False)
    engine.trim(True)


class Training:
    """A small model and its optimizer; every step allocates in the same order."""

    def __init__(self, seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.model = torch.nn.Sequential(
            torch.nn.Linear(64, 256), torch.nn.GELU(), torch.nn.LayerNorm(256), torch.nn.Linear(256, 8)
        )
        self.optimizer = torch.optim.AdamW(self.model.parameters(), foreach=False)

    def step(self) -> float:
        inputs = torch.randn(32, 64)
        loss = torch.nn.functional.cross_entropy(self.model(inputs), torch.randint(0, 8, (32,)))
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.item()


def activate_plan_of(engine, step, num_settling: int = 2, num_recorded: int = 3) -> dict:
    """Runs `step` unrecorded, then recorded, and serves from the plan of what was recorded."""
    for _ in range(num_settling):
        step()
    engine.end_step()
    engine.start_recording(CAPACITY_EVENTS)
    for _ in range(num_recorded):
        step()
        engine.end_step()
    plan = _core.build_plan(engine.recorded(), False)
    engine.stop_recording()
    assert engine.activate(plan, 0)
    return plan


def served_by(engine, tensor: torch.Tensor) -> bool:
    address = tensor.untyped_storage().data_ptr()
    return any(block["address"] == address and block["requested"] for block in engine.blocks())


def run_python(program: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), *arguments], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_install_is_idempotent_and_names_our_allocator(module):
    module.install()
    assert module.is_installed()
    assert module.engine(0) is not None


def test_engine_before_install_says_what_to_do():
    out = run_python(
        """
        from stalloc_accel import extension
        module = extension.load("cpu")
        assert not module.is_installed()
        try:
            module.engine(0)
        except ValueError as error:
            print(error)
        """
    )
    assert "Call install() first" in out


def test_training_is_served_from_the_plan_with_the_same_losses(engine):
    expected = Training()
    losses = [expected.step() for _ in range(12)]

    training = Training()
    got = []
    activate_plan_of(engine, lambda: got.append(training.step()))
    before = engine.stats()
    while len(got) < 12:
        got.append(training.step())
        engine.end_step()
    stats = engine.stats()

    assert got == losses
    requests = stats["requests"] - before["requests"]
    hits = stats["slot_hits"] - before["slot_hits"]
    assert requests > 0 and hits / requests >= 0.99, stats
    assert stats["bad_frees"] == 0


def test_tensors_outlive_the_plan_they_were_served_from(engine):
    kept = []

    def step():
        kept[:] = [torch.full((1000,), float(i)) for i in range(20)]

    activate_plan_of(engine, step)
    step()
    served = [tensor for tensor in kept if served_by(engine, tensor)]
    assert served
    engine.deactivate()
    engine.trim(True)
    assert all(bool((tensor == float(i)).all()) for i, tensor in enumerate(kept))
    kept.clear()
    del served
    engine.trim(True)
    assert engine.stats()["extent_bytes"] == 0
    assert engine.stats()["served_bytes"] == 0


def test_empty_tensors_and_tensors_born_before_us_are_freed_as_ever():
    out = run_python(
        """
        import torch
        early = torch.arange(1000)
        from stalloc_accel import extension
        module = extension.load("cpu")
        module.install()
        assert int(early.sum()) == 499500
        early.resize_(5000)   # a storage born earlier keeps the native allocator
        del early
        empty = torch.empty(0)
        assert empty.untyped_storage().nbytes() == 0
        del empty
        print("done")
        """
    )
    assert out.strip() == "done"


def test_a_served_storage_keeps_its_contents_when_it_is_resized(engine):
    def step():
        tensor = torch.arange(500, dtype=torch.float32)
        tensor.resize_(4000)
        return tensor

    activate_plan_of(engine, step)
    tensor = step()
    assert served_by(engine, tensor)
    assert torch.equal(tensor[:500], torch.arange(500, dtype=torch.float32))
    tensor.untyped_storage().resize_(0)
    assert tensor.untyped_storage().nbytes() == 0


def test_many_threads_never_share_bytes(engine):
    plan_step = Training(1)
    activate_plan_of(engine, plan_step.step)
    errors = []

    def work(index: int) -> None:
        try:
            generator = torch.Generator().manual_seed(index)
            kept = []
            for round_number in range(300):
                size = int(torch.randint(1, 20_000, (1,), generator=generator))
                kept.append((torch.full((size,), index * 1000 + round_number, dtype=torch.int64), round_number))
                if len(kept) > 8:
                    tensor, value = kept.pop(int(torch.randint(0, len(kept), (1,), generator=generator)))
                    assert bool((tensor == index * 1000 + value).all())
        except BaseException:
            errors.append(traceback.format_exc())

    threads = [threading.Thread(target=work, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for _ in range(20):
        plan_step.step()
        engine.end_step()
    for thread in threads:
        thread.join()
    assert not errors, errors[0]
    assert engine.stats()["bad_frees"] == 0


class Squares(Dataset):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((512,), float(index * index))


def test_forked_data_loader_workers_pass_through(engine):
    training = Training(2)
    activate_plan_of(engine, training.step)
    kept = torch.ones(3000)
    loader = DataLoader(Squares(), batch_size=8, num_workers=2, multiprocessing_context="fork")
    total = 0.0
    for batch in loader:
        total += float(batch[:, 0].sum())
        training.step()
        engine.end_step()
    assert total == sum(i * i for i in range(64))
    assert bool((kept == 1).all())


def test_a_forked_child_may_free_what_its_parent_was_served(engine):
    held = []

    def step():
        held[:] = [torch.full((1000,), 7.0) for _ in range(4)]

    activate_plan_of(engine, step)
    step()
    assert served_by(engine, held[0])
    child = os.fork()
    if child == 0:
        status = 1
        try:
            good = all(bool((tensor == 7).all()) for tensor in held)
            held.clear()
            fresh = torch.ones(1000)
            status = 0 if good and float(fresh.sum()) == 1000 else 1
        finally:
            os._exit(status)
    _, wait_status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(wait_status) == 0
    assert all(bool((tensor == 7).all()) for tensor in held)


def test_the_profiler_sees_served_memory_like_native_memory(engine):
    def step():
        return torch.ones(4096, dtype=torch.float32) + 1

    def events_of_a_step():
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
            step()
        return sorted(event.self_cpu_memory_usage for event in profiler.events() if event.self_cpu_memory_usage)

    native = events_of_a_step()
    assert native
    activate_plan_of(engine, step)
    hits = engine.stats()["slot_hits"] + engine.stats()["gap_hits"]
    served = events_of_a_step()
    assert engine.stats()["slot_hits"] + engine.stats()["gap_hits"] > hits
    assert served == native


def test_recording_holds_each_allocation_and_its_free(engine):
    engine.start_recording(CAPACITY_EVENTS)
    tensor = torch.empty(12_345, dtype=torch.uint8)
    address = tensor.untyped_storage().data_ptr()
    del tensor
    engine.end_step()
    trace = engine.recorded()
    ours = trace["event_size"][trace["event_address"] == address].tolist()
    assert ours[:2] == [12_345, 0]


def test_interpreter_exit_with_live_served_tensors_is_clean():
    out = run_python(
        """
        import atexit, torch
        from stalloc_accel import _core, extension
        module = extension.load("cpu")
        module.install()
        engine = module.engine(0)
        kept = []
        def step():
            kept[:] = [torch.ones(1000) for _ in range(8)]
        step()
        engine.end_step()
        engine.start_recording(10000)
        for _ in range(3):
            step()
            engine.end_step()
        assert engine.activate(_core.build_plan(engine.recorded(), False), 0)
        step()
        assert engine.stats()["slot_hits"] > 0
        atexit.register(lambda: print(sum(float(t.sum()) for t in kept)))
        """
    )
    assert out.strip() == "8000.0"


def test_the_arena_of_the_gpu_tests_serves_small_and_large_requests(module):
    arena = Arena(module, module.engine(0), device="cpu")
    before = arena.num_served()
    arena.open(64 << 20)
    tensors = [torch.empty(size, dtype=torch.uint8) for size in (3000, 700_000, 3 << 20, 20 << 20)]
    assert all(arena.holds(tensor) for tensor in tensors) and arena.num_served() == before + len(tensors)
    beyond = torch.empty(60 << 20, dtype=torch.uint8)
    assert not arena.holds(beyond)
    del tensors, beyond
    arena.close()
    assert arena.num_bad_frees() == 0 and not arena.engine.blocks()


def test_a_request_that_no_memory_can_hold_raises_torchs_own_error(engine):
    training = Training(3)
    activate_plan_of(engine, training.step)
    with pytest.raises(RuntimeError, match="DefaultCPUAllocator"):
        torch.empty(1 << 50, dtype=torch.uint8)
    training.step()
