"""Served memory is right: the same losses, no shared bytes, whatever the threads and streams do; and it is fast."""

from __future__ import annotations

import threading
import traceback

import torch
from gpu_helpers import MIB, Training, pattern_is


def test_training_is_served_from_the_plan_with_the_same_losses(arena):
    expected = Training()
    losses = [expected.step() for _ in range(12)]
    del expected

    training = Training()
    got = []
    arena.serve(lambda: got.append(training.step()))
    before = arena.engine.stats()
    while len(got) < 12:
        got.append(training.step())
        arena.engine.end_step()
    stats = arena.engine.stats()
    assert got == losses
    hits = stats["slot_hits"] - before["slot_hits"]
    requests = stats["requests"] - before["requests"]
    assert requests > 100 and hits / requests >= 0.99, stats
    assert arena.num_bad_frees() == 0


def test_threads_on_streams_of_their_own_and_on_a_shared_one_never_share_bytes(arena):
    arena.open(256 * MIB)
    errors = []

    def work(index: int) -> None:
        try:
            generator = torch.Generator().manual_seed(index)
            stream = torch.cuda.Stream() if index % 2 else torch.cuda.default_stream()
            kept = []
            with torch.cuda.stream(stream):
                for round_number in range(400):
                    size = int(torch.randint(1, 200_000, (1,), generator=generator))
                    value = index * 1000 + round_number
                    kept.append((torch.full((size,), value, dtype=torch.int32, device="cuda"), value))
                    if len(kept) > 12:
                        tensor, value = kept.pop(int(torch.randint(0, len(kept), (1,), generator=generator)))
                        assert pattern_is(tensor, value)
                assert all(pattern_is(tensor, value) for tensor, value in kept)
        except BaseException:
            errors.append(traceback.format_exc())

    threads = [threading.Thread(target=work, args=(index,)) for index in range(8)]
    before = arena.engine.stats()["gap_hits"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors[0]
    assert arena.engine.stats()["gap_hits"] > before
    assert arena.num_bad_frees() == 0


def test_every_block_carries_the_one_deleter(arena):
    native = torch.empty(1000, device="cuda")
    arena.open(8 * MIB)
    served = torch.empty(1000, device="cuda")
    assert arena.holds(served) and not arena.holds(native)
    for tensor in (native, served):
        assert torch._C._has_Standard_Deleter(tensor.untyped_storage()._cdata)


def test_raw_blocks_are_served_and_freed(arena):
    arena.open(8 * MIB)
    address = torch.cuda.caching_allocator_alloc(100_000)
    assert arena.contains(address)
    served = arena.engine.stats()["served_bytes"]
    torch.cuda.caching_allocator_delete(address)
    assert arena.engine.stats()["served_bytes"] < served


def test_a_storage_grows_and_shrinks_in_the_arena(arena):
    arena.open(8 * MIB)
    tensor = torch.arange(1000, device="cuda")
    assert arena.holds(tensor)
    tensor.resize_(100_000)
    assert torch.equal(tensor[:1000], torch.arange(1000, device="cuda"))
    tensor.untyped_storage().resize_(0)
    assert tensor.untyped_storage().nbytes() == 0


def test_torchs_switch_for_caching_is_followed(arena):
    arena.open(8 * MIB)
    served = torch.ones(1000, device="cuda")
    torch.cuda.memory.caching_allocator_enable(False)
    try:
        uncached = torch.ones(1000, device="cuda")
        assert arena.holds(served) and not arena.contains(uncached.data_ptr())
        assert float(uncached.sum() + served.sum()) == 2000
        del uncached, served
    finally:
        torch.cuda.memory.caching_allocator_enable(True)
    assert arena.holds(torch.ones(1000, device="cuda"))


def test_a_served_pair_costs_less_than_a_native_one(arena, capsys):
    rows = []

    def measure(what: str, size: int, num_pairs: int = 200_000) -> float:
        # The best of three pairs of measurements: other tests may be running beside this one.
        ours, native = min((arena.module.benchmark_pair(size, num_pairs) for _ in range(3)), key=lambda p: p[0] / p[1])
        rows.append(f"pair of {size} bytes {what}: ours {ours:.0f} ns, native {native:.0f} ns, {ours / native:.2f}")
        return ours / native

    torch.cuda.empty_cache()
    passed = measure("passed through", 1 << 16)
    arena.engine.start_recording(1 << 20)
    measure("passed through and recorded", 1 << 16)
    arena.engine.stop_recording()
    arena.open(64 * MIB)
    served = [measure("served from a gap", size) for size in (512, 1 << 16, 1 << 22)]
    measure("passed through beside an arena", 1 << 28)
    arena.serve(lambda: [torch.empty(1 << 16, dtype=torch.uint8, device="cuda").data_ptr() for _ in range(2000)])
    arena.engine.end_step()
    hits = arena.engine.stats()["slot_hits"]
    served.append(measure("served from its slot", 1 << 16, 640))
    assert arena.engine.stats()["slot_hits"] == hits + 1920
    with capsys.disabled():
        print("", *rows, sep="\n")
    assert served.pop() < 0.5, rows  # its slot
    assert max(served) < 1, rows
    assert passed < 1.5, rows


def test_sixteen_threads_at_once_wait_no_longer_than_on_the_native_allocator(arena, capsys):
    arena.open(64 * MIB)
    served = arena.num_served()
    # The best of five: other programs may be running beside this one.
    pairs = [arena.module.benchmark_threads(1 << 16, 2000, 16) for _ in range(5)]
    assert arena.num_served() >= served + 5 * 16 * 2000
    ours, native = min(pairs, key=lambda pair: pair[0] / pair[1])
    with capsys.disabled():
        print(f"\npair of 65536 bytes on 16 threads at once: ours {ours:.0f} ns, native {native:.0f} ns, {ours / native:.2f}")
    assert ours <= native
