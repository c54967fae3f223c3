"""A block is never reused before the work on every stream that uses it is done."""

from __future__ import annotations

import time

import torch
from gpu_helpers import MIB, pattern_is

SLEEP_CYCLES = 400_000_000  # a fifth of a second or so
COUNT = 100_000


def use_on_side_stream(source: torch.Tensor, side: torch.cuda.Stream) -> torch.Tensor:
    """A copy of `source`, made on `side` after a long wait."""
    copy = torch.zeros_like(source)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(SLEEP_CYCLES)
        copy.copy_(source)
    return copy


def test_without_record_stream_reuse_is_seen_so_that_the_next_test_means_something(arena):
    arena.open(8 * MIB)
    side = torch.cuda.Stream()
    source = torch.ones(COUNT, device="cuda")
    address = source.data_ptr()
    copy = use_on_side_stream(source, side)
    del source
    other = torch.full((COUNT,), 2.0, device="cuda")
    assert other.data_ptr() == address
    torch.cuda.synchronize()
    assert not pattern_is(copy, 1.0)


def test_a_recorded_block_waits_for_the_stream_and_comes_back(arena):
    arena.open(8 * MIB)
    side = torch.cuda.Stream()
    source = torch.ones(COUNT, device="cuda")
    address = source.data_ptr()
    assert arena.holds(source)
    copy = use_on_side_stream(source, side)
    source.record_stream(side)
    del source
    assert arena.engine.stats()["awaiting_bytes"] >= 4 * COUNT
    other = torch.full((COUNT,), 2.0, device="cuda")
    assert other.data_ptr() != address
    torch.cuda.synchronize()
    assert pattern_is(copy, 1.0)
    arena.engine.poll_fences()
    assert arena.engine.stats()["awaiting_bytes"] == 0
    again = torch.empty(COUNT, device="cuda")
    assert again.data_ptr() == address


def test_record_stream_works_for_native_blocks_too(arena):
    side = torch.cuda.Stream()
    source = torch.ones(COUNT, device="cuda")
    address = source.data_ptr()
    assert not arena.holds(source)
    copy = use_on_side_stream(source, side)
    source.record_stream(side)
    del source
    other = torch.full((COUNT,), 2.0, device="cuda")
    assert other.data_ptr() != address
    torch.cuda.synchronize()
    assert pattern_is(copy, 1.0)


def test_recording_on_the_own_stream_costs_no_wait(arena):
    arena.open(8 * MIB)
    tensor = torch.ones(COUNT, device="cuda")
    address = tensor.data_ptr()
    tensor.record_stream(torch.cuda.current_stream())
    del tensor
    assert arena.engine.stats()["awaiting_bytes"] == 0
    assert torch.empty(COUNT, device="cuda").data_ptr() == address


def test_the_arena_is_not_given_back_while_a_block_waits(arena):
    arena.open(8 * MIB)
    side = torch.cuda.Stream()
    source = torch.ones(COUNT, device="cuda")
    address = source.data_ptr()
    copy = use_on_side_stream(source, side)
    source.record_stream(side)
    del source
    arena.engine.deactivate()
    arena.engine.trim(True)
    torch.cuda.empty_cache()
    assert arena.contains(address)
    others = [torch.full((COUNT,), 2.0, device="cuda") for _ in range(8)]
    assert address not in {other.data_ptr() for other in others}
    torch.cuda.synchronize()
    assert pattern_is(copy, 1.0)
    del copy, others
    arena.engine.trim(True)
    assert not arena.contains(address)


def test_another_stream_that_took_a_freed_block_at_once_would_break_it(arena):
    arena.open(8 * MIB)
    source, copy = torch.ones(COUNT, device="cuda"), torch.zeros(COUNT, device="cuda")
    side = torch.cuda.Stream()
    torch.cuda.synchronize()
    torch.cuda._sleep(SLEEP_CYCLES)
    copy.copy_(source)
    with torch.cuda.stream(side):
        source.fill_(2.0)  # what the next owner would do, had the block changed its stream at its free
    torch.cuda.synchronize()
    assert not pattern_is(copy, 1.0)


def test_a_freed_block_stays_with_its_stream(arena):
    side = torch.cuda.Stream()

    def step() -> None:
        torch.empty(COUNT, device="cuda")
        with torch.cuda.stream(side):
            torch.empty(COUNT, device="cuda")

    arena.serve(step)
    copy = torch.zeros(COUNT, dtype=torch.float64, device="cuda")  # of another size: no slot foretells it
    source = torch.ones(COUNT, device="cuda")
    address = source.data_ptr()
    assert arena.holds(source)
    torch.cuda.synchronize()
    torch.cuda._sleep(SLEEP_CYCLES)
    copy.copy_(source)
    del source
    with torch.cuda.stream(side):
        others = [torch.full((COUNT,), 2.0, device="cuda") for _ in range(4)]
    assert arena.holds(others[0]) and address not in {other.data_ptr() for other in others}
    torch.cuda.synchronize()
    assert pattern_is(copy, 1.0)


def test_streams_do_not_share_an_arena(arena):
    arena.open(8 * MIB)
    with torch.cuda.stream(torch.cuda.Stream()):
        other = torch.ones(COUNT, device="cuda")
    assert not arena.contains(other.data_ptr())


def test_a_busy_stream_does_not_block_the_host(arena):
    arena.open(32 * MIB)
    side = torch.cuda.Stream()
    source = torch.ones(COUNT, device="cuda")
    copy = use_on_side_stream(source, side)
    source.record_stream(side)
    begin = time.perf_counter()
    del source
    for _ in range(100):
        torch.empty(COUNT, device="cuda")
    assert time.perf_counter() - begin < 0.1
    torch.cuda.synchronize()
    assert pattern_is(copy, 1.0)
