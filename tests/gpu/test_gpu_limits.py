"""At the limit: nothing fails that would fit without us, and what fails, fails as ever."""

from __future__ import annotations

import pytest
import torch
from gpu_helpers import MIB


def limit_to(size_bytes: int) -> None:
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(size_bytes / total)


@pytest.fixture(scope="module")
def observed() -> list[tuple]:
    calls: list[tuple] = []
    torch.zeros(1, device="cuda")
    torch._C._cuda_attach_out_of_memory_observer(lambda *arguments: calls.append(arguments))
    return calls


def test_an_empty_arena_gives_way_without_a_failed_request(arena, observed):
    torch.cuda.empty_cache()
    held = arena.engine.stats()["extent_bytes"]  # by what earlier tests left alive
    arena.open(512 * MIB)
    torch.cuda.empty_cache()
    limit_to(torch.cuda.memory_reserved() + 64 * MIB)
    ooms, observations = torch.cuda.memory_stats()["num_ooms"], len(observed)
    large = torch.ones(540 * MIB, dtype=torch.uint8, device="cuda")
    assert int(large[::MIB].sum()) == 540
    assert torch.cuda.memory_stats()["num_ooms"] == ooms
    assert len(observed) == observations
    assert arena.engine.stats()["extent_bytes"] <= held


def test_an_arena_in_use_stays_and_the_error_is_torchs_own(arena, observed):
    torch.cuda.empty_cache()
    arena.open(256 * MIB)
    kept = torch.ones(MIB, dtype=torch.uint8, device="cuda")
    assert arena.holds(kept)
    limit_to(torch.cuda.memory_reserved() + 64 * MIB)
    ooms, observations = torch.cuda.memory_stats()["num_ooms"], len(observed)
    with pytest.raises(torch.OutOfMemoryError, match="CUDA out of memory. Tried to allocate 1024.00 MiB"):
        torch.empty(1024 * MIB, dtype=torch.uint8, device="cuda")
    assert torch.cuda.memory_stats()["num_ooms"] == ooms + 1
    assert len(observed) == observations + 1
    assert bool((kept == 1).all())
    small = torch.ones(MIB, dtype=torch.uint8, device="cuda")
    assert arena.holds(small)


def test_blocks_that_wait_for_a_stream_give_way_too(arena, observed):
    torch.cuda.empty_cache()
    arena.open(512 * MIB)
    side = torch.cuda.Stream()
    waiting = torch.ones(MIB, dtype=torch.uint8, device="cuda")
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(100_000_000)
        copy = waiting * 1
    waiting.record_stream(side)
    del waiting
    assert arena.engine.stats()["awaiting_bytes"] > 0
    limit_to(torch.cuda.memory_reserved() + 64 * MIB)
    large = torch.ones(540 * MIB, dtype=torch.uint8, device="cuda")
    assert int(large[::MIB].sum()) == 540 and int(copy[::1024].sum()) == 1024


def test_a_plan_without_room_is_refused_and_training_goes_on(arena):
    plan = arena.record_plan(lambda: torch.empty(512 * MIB, dtype=torch.uint8, device="cuda"))
    torch.cuda.empty_cache()
    limit_to(torch.cuda.memory_reserved() + 64 * MIB)
    stats = torch.cuda.memory_stats()
    assert not arena.engine.activate(plan, 0)
    after = torch.cuda.memory_stats()
    for key in ("num_ooms", "num_alloc_retries"):
        assert after[key] == stats[key], key
    assert not arena.engine.is_active()
    assert torch.ones(1000, device="cuda").sum() == 1000


def test_empty_cache_gives_back_an_idle_arena_and_keeps_an_active_one(arena):
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    arena.open(256 * MIB)
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() >= before + 256 * MIB
    arena.engine.deactivate()
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() <= before


def test_a_batch_size_search_survives_its_out_of_memory_errors(arena):
    from accelerate.utils import find_executable_batch_size

    arena.open(64 * MIB)
    torch.cuda.empty_cache()
    limit_to(torch.cuda.memory_reserved() + 128 * MIB)
    tried = []

    @find_executable_batch_size(starting_batch_size=1024)
    def run(batch_size: int) -> int:
        tried.append(batch_size)
        torch.empty(batch_size * MIB, dtype=torch.uint8, device="cuda")
        return batch_size

    assert run() <= 192 and len(tried) > 1


def test_a_model_that_its_host_moves_after_we_began_leaves_no_cached_memory_behind(run_python, tmp_path):
    program = f"""
        import torch
        from stalloc_accel import Session, StallocConfig
        model = torch.nn.Sequential(*(torch.nn.Linear(2048, 2048, device="cuda") for _ in range(8)))  # 128 MiB
        was_there = torch.cuda.memory_reserved()
        session = Session(StallocConfig(cache_dir={str(tmp_path)!r}, log_level="error"))
        session.start()
        for parameter in model.parameters():  # as a host that partitions it
            parameter.data = parameter.data.clone()
        session.attach(model)
        optimizer = torch.optim.SGD(model.parameters(), 1e-3)
        for _ in range(8):
            model(torch.ones(64, 2048, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            session.step()
        figures = session.figures()
        beside = torch.cuda.memory_reserved() - (figures["plan"] or {{"arena_bytes": 0}})["arena_bytes"]
        print(session.state.value, session.from_cache, was_there >> 20, beside >> 20)
        """
    first, second = run_python(program).split(), run_python(program).split()
    # The first run may be refused its plan: of so small a model expandable segments take no more.
    assert first[1] == "False" and second[:2] == ["active", "True"], (first, second)
    # MiB: the model at its new place, cuBLAS's workspace and small segments; its old place went back to the device.
    assert int(second[2]) >= 128 and 128 <= int(second[3]) <= 176, second
