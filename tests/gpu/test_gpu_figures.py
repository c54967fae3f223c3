"""torch's figures, snapshots and profiles count served blocks as they count native ones."""

from __future__ import annotations

import pytest
import torch
from gpu_helpers import MIB

KEYS = ("allocated_bytes", "active_bytes", "requested_bytes", "allocation", "active")


def figures() -> dict[str, int]:
    return torch.cuda.memory_stats()


def workload() -> list[torch.Tensor]:
    kept = [torch.empty(size, dtype=torch.uint8, device="cuda") for size in (100, 5000, 3 * MIB, 700_000)]
    torch.empty(2 * MIB, dtype=torch.uint8, device="cuda")
    kept.pop(1)
    return kept


def test_deltas_of_all_figures_are_those_of_the_native_allocator(arena):
    def measure():
        torch.cuda.reset_peak_memory_stats()
        torch.cuda.reset_accumulated_memory_stats()
        before = figures()
        kept = workload()
        during = figures()
        del kept
        after = figures()
        rows = {}
        for key in KEYS:
            for pool in ("all", "small_pool", "large_pool"):
                for name in ("current", "allocated", "freed"):
                    label = f"{key}.{pool}.{name}"
                    rows[label] = (during[label] - before[label], after[label] - before[label])
        for key in KEYS[:2]:
            rows[f"{key}.all.peak"] = during[f"{key}.all.peak"] - before[f"{key}.all.current"]
        return rows, during["requested_bytes.all.peak"] - before["requested_bytes.all.current"]

    workload()
    native, native_peak = measure()
    arena.open(64 * MIB)
    hits = arena.num_served()
    served, served_peak = measure()
    assert arena.num_served() == hits + 5
    assert served == native
    assert native_peak <= served_peak <= native_peak + 512 * 5  # to within the rounding


def test_reserved_stays_the_drivers_truth_and_extents_count_as_reserved(arena):
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    allocated = torch.cuda.memory_allocated()
    arena.open(64 * MIB)
    torch.cuda.empty_cache()
    assert torch.cuda.memory_reserved() >= before + 64 * MIB
    assert torch.cuda.memory_allocated() == allocated
    tensor = torch.empty(10 * MIB, dtype=torch.uint8, device="cuda")
    assert arena.holds(tensor)
    assert torch.cuda.memory_allocated() == allocated + 10 * MIB


def test_the_peak_counts_what_lived_together_and_resets(arena):
    arena.open(64 * MIB)
    torch.cuda.reset_peak_memory_stats()
    base = torch.cuda.memory_allocated()
    served = torch.empty(20 * MIB, dtype=torch.uint8, device="cuda")
    del served
    native = torch.empty(100 * MIB, dtype=torch.uint8, device="cuda")
    assert not arena.holds(native)
    assert torch.cuda.max_memory_allocated() - base == 100 * MIB  # not 120: they did not live together
    served = torch.empty(20 * MIB, dtype=torch.uint8, device="cuda")
    assert torch.cuda.max_memory_allocated() - base == 120 * MIB
    del served, native
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.max_memory_allocated() == torch.cuda.memory_allocated() == base


def test_every_key_is_there_and_the_summary_prints(arena):
    keys = set(figures())
    arena.open(8 * MIB)
    assert set(figures()) == keys
    assert "Allocated memory" in torch.cuda.memory_summary()


@pytest.fixture
def history():
    torch.cuda.memory._record_memory_history(max_entries=10_000)
    yield
    torch.cuda.memory._record_memory_history(enabled=None)


def test_a_snapshot_shows_served_blocks_with_frames_and_their_life(arena, history):
    arena.open(16 * MIB)
    tensor = torch.empty(123_456, dtype=torch.uint8, device="cuda")
    freed = torch.empty(7_000, dtype=torch.uint8, device="cuda")
    freed_address = freed.data_ptr()
    del freed
    snapshot = torch.cuda.memory._snapshot()
    blocks = [block for segment in snapshot["segments"] for block in segment["blocks"]]
    (ours,) = [block for block in blocks if block["address"] == tensor.data_ptr()]
    assert ours["state"] == "active_allocated" and ours["requested_size"] == 123_456
    assert any("test_gpu_figures" in frame["filename"] for frame in ours["frames"])
    for segment in snapshot["segments"]:
        assert sum(block["size"] for block in segment["blocks"]) == segment["total_size"]
    total = sum(segment["allocated_size"] for segment in snapshot["segments"])
    assert total == torch.cuda.memory_allocated()

    trace = snapshot["device_traces"][0]
    assert [entry["time_us"] for entry in trace] == sorted(entry["time_us"] for entry in trace)
    assert [e["action"] for e in trace if e["addr"] == tensor.data_ptr()][-1] == "alloc"
    actions = [e["action"] for e in trace if e["addr"] == freed_address]
    assert actions[-3:] == ["alloc", "free_requested", "free_completed"]
    assert [e["size"] for e in trace if e["addr"] == freed_address][-3:] == [7_000] * 3
    extents = {block["extent"] for block in arena.engine.blocks()}
    sizes = {block["extent_size"] for block in arena.engine.blocks()}
    assert not [e for e in trace if e["action"] == "alloc" and e["addr"] in extents and e["size"] in sizes]


def test_memory_viz_opens_the_snapshot(arena, history):
    from torch.cuda import _memory_viz

    arena.open(16 * MIB)
    kept = torch.empty(123_456, dtype=torch.uint8, device="cuda")
    snapshot = torch.cuda.memory._snapshot()
    assert "<html" in _memory_viz.trace_plot(snapshot).lower() or "viz" in _memory_viz.trace_plot(snapshot).lower()
    assert _memory_viz.segsum(snapshot)
    del kept


def test_the_profiler_sees_served_memory_like_native_memory(arena):
    def events():
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
            tensor = torch.empty(300_000, dtype=torch.uint8, device="cuda")
            del tensor
        return [e.self_device_memory_usage for e in profiler.events() if e.self_device_memory_usage]

    native = events()
    assert native
    arena.open(16 * MIB)
    hits = arena.engine.stats()["gap_hits"]
    served = events()
    assert arena.engine.stats()["gap_hits"] > hits
    assert served == native


def test_the_largest_block_that_cudnn_hears_of_counts_the_gaps(arena):
    torch.cuda.empty_cache()
    arena.open(96 * MIB)
    torch.cuda.empty_cache()
    assert arena.module.largest_cached_block(0) >= 95 * MIB
    tensor = torch.empty(60 * MIB, dtype=torch.uint8, device="cuda")
    assert arena.holds(tensor)
    assert arena.module.largest_cached_block(0) < 40 * MIB
