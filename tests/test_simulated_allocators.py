"""The models of torch's caching allocator, rule by rule, and against what was measured on a GPU."""

import json

import numpy as np
import pytest

from histories import DATA, GIB, KIB, MIB, SHARED, History
from stalloc_accel import _core
from stalloc_accel.trace import read_traces


def replay(history: History, policy: str = "native", **options) -> dict:
    return _core.replay(history.core(), policy, options)


def test_a_small_request_takes_a_small_segment():
    history = History()
    history.allocate(1)
    assert replay(history)["reserved_peak_bytes"] == 2 * MIB
    assert replay(history)["allocated_peak_bytes"] == 512


def test_requests_below_ten_mib_share_a_segment_of_twenty():
    history = History()
    history.allocate(6 * MIB)
    history.allocate(6 * MIB)
    history.allocate(6 * MIB)
    assert replay(history)["reserved_peak_bytes"] == 20 * MIB


def test_a_large_request_takes_a_segment_rounded_to_two_mib():
    history = History()
    history.allocate(11 * MIB)
    assert replay(history)["reserved_peak_bytes"] == 12 * MIB


def test_a_tail_of_up_to_one_mib_stays_with_its_block_and_counts_as_allocated():
    history = History()
    history.allocate(11 * MIB)  # of a segment of 12: the rest is exactly 1 MiB
    assert replay(history)["allocated_peak_bytes"] == 12 * MIB


def test_streams_do_not_share_cached_blocks():
    history = History()
    history.free(history.allocate(32 * MIB, stream=1))
    history.allocate(32 * MIB, stream=2)
    assert replay(history)["reserved_peak_bytes"] == 64 * MIB


def test_a_block_comes_back_when_its_free_completes_and_not_before():
    history = History()
    block = history.allocate(32 * MIB)
    history.request_free(block)
    history.allocate(32 * MIB)
    history.complete_free(block)
    history.allocate(32 * MIB)
    result = replay(history)
    assert result["reserved_peak_bytes"] == 64 * MIB
    assert result["allocated_peak_bytes"] == 64 * MIB


def test_the_best_fit_is_the_smallest_that_suffices():
    history = History()
    large, fitting = history.allocate(64 * MIB), history.allocate(40 * MIB)
    history.free(large, fitting)
    history.allocate(40 * MIB)
    history.allocate(64 * MIB)
    assert replay(history)["reserved_peak_bytes"] == 104 * MIB


def test_a_full_device_is_flushed_before_a_request_fails():
    history = History()
    history.free(history.allocate(60 * MIB))
    history.allocate(80 * MIB)
    result = replay(history, limit_bytes=100 * MIB)
    assert (result["flushes"], result["died_at_event"]) == (1, -1)


def test_a_flush_waits_for_blocks_that_other_streams_still_use():
    history = History()
    block = history.allocate(60 * MIB)
    history.request_free(block)
    history.allocate(80 * MIB)
    history.complete_free(block)
    assert replay(history, limit_bytes=100 * MIB)["died_at_event"] == -1


@pytest.mark.parametrize("policy", ["native", "expandable"])
def test_a_request_beyond_the_limit_ends_the_replay_there(policy):
    history = History()
    history.allocate(60 * MIB)
    history.allocate(60 * MIB)
    assert replay(history, policy, limit_bytes=100 * MIB)["died_at_event"] == 1


def test_empty_cache_gives_back_whole_segments_only():
    history = History()
    whole = history.allocate(32 * MIB)
    kept, freed = history.allocate(4 * MIB), history.allocate(4 * MIB)
    history.free(whole, freed)
    history.empty_cache()
    mark = len(history.rows)
    history.free(kept)
    result = _core.replay(history.core((mark,)), "native", {})
    assert result["step_reserved"].tolist() == [20 * MIB]


def test_blocks_above_the_split_limit_serve_only_requests_of_their_kind():
    history = History()
    history.free(history.allocate(200 * MIB))
    history.allocate(30 * MIB)
    assert replay(history)["reserved_peak_bytes"] == 200 * MIB
    assert replay(history, max_split_size=100 * MIB)["reserved_peak_bytes"] == 230 * MIB


def test_an_oversized_block_goes_back_before_the_cache_is_flushed():
    history = History()
    history.free(history.allocate(200 * MIB), history.allocate(20 * MIB))
    history.allocate(150 * MIB)
    result = replay(history, max_split_size=100 * MIB, limit_bytes=230 * MIB)
    assert (result["flushes"], result["died_at_event"]) == (0, -1)


def test_garbage_collection_keeps_below_its_threshold():
    history = History()
    history.free(history.allocate(60 * MIB))
    history.allocate(70 * MIB)
    assert replay(history, limit_bytes=GIB)["reserved_peak_bytes"] == 130 * MIB
    collected = replay(history, limit_bytes=GIB, garbage_collection_threshold=0.05)
    assert collected["reserved_peak_bytes"] == 70 * MIB


@pytest.mark.parametrize(("size", "divisions", "expected"), [
    (1200 * KIB, 4, 1280 * KIB), (1024 * KIB, 4, 1024 * KIB), (1537, 4, 2048), (1025 * KIB, 8, 1152 * KIB)])
def test_sizes_round_to_parts_of_a_power_of_two(size, divisions, expected):
    history = History()
    history.allocate(size)
    result = replay(history, "expandable", roundup_power2_divisions=[divisions] * 16)
    assert result["allocated_peak_bytes"] == expected


def test_expandable_segments_grow_by_pages_and_fill_their_holes():
    history = History()
    first = history.allocate(30 * MIB)
    history.allocate(5 * MIB)
    history.free(first)
    history.allocate(30 * MIB)
    assert replay(history, "expandable")["reserved_peak_bytes"] == 40 * MIB


def test_expandable_segments_unmap_free_pages_and_map_them_again():
    history = History()
    first = history.allocate(40 * MIB)
    history.allocate(10 * MIB)
    history.free(first)
    history.empty_cache()
    mark = len(history.rows)
    history.allocate(40 * MIB)
    result = _core.replay(history.core((mark,)), "expandable", {})
    assert result["step_reserved"].tolist() == [20 * MIB]
    assert result["reserved_peak_bytes"] == 60 * MIB


@pytest.mark.parametrize(("kind", "policy"), [("nat", "native"), ("es", "expandable")])
def test_two_recorded_steps_reserve_what_the_gpu_reserved(kind, policy):
    truth = json.loads((DATA / "z3_moe_two_steps.json").read_text())[kind]
    [trace] = read_traces(DATA / f"z3_moe_two_steps_{kind}.pickle.gz")
    core = _core.ReplayTrace(trace.history.action, trace.history.address, trace.history.size, trace.history.stream,
                             np.array(truth["marks"], np.int64))
    result = _core.replay(core, policy, {})
    assert result["step_reserved"].tolist() == truth["reserved_now"]
    assert result["step_allocated"].tolist() == truth["allocated_now"]
    assert result["reserved_peak_bytes"] == truth["reserved_peak"]


def recorded_names() -> list[str]:
    truth = SHARED / "traces" / "truth.json"
    return sorted(json.loads(truth.read_text())) if truth.exists() else []


@pytest.mark.skipif(not recorded_names(), reason="the recorded traces are not beside this checkout")
@pytest.mark.parametrize("name", recorded_names())
def test_a_recorded_trace_reserves_what_the_gpu_reserved(name):
    directory = SHARED / "traces"
    truth = json.loads((directory / "truth.json").read_text())[name]
    [trace] = read_traces(directory / f"{name}.pickle.gz", directory / f"{name}.marks.json")
    policy, tolerance = ("native", 0.005) if name.endswith("_nat") else ("expandable", 0.015)
    result = _core.replay(trace.to_core(), policy, {})
    assert result["reserved_peak_bytes"] == pytest.approx(truth["reserved_peak"], rel=tolerance)
    reserved_now = [row[truth["columns"].index("reserved_now")] for row in truth["memory_stats_at_step_start"]]
    assert result["step_reserved"][:len(reserved_now)] == pytest.approx(reserved_now, rel=0.01)


@pytest.mark.skipif(not recorded_names(), reason="the recorded traces are not beside this checkout")
def test_a_limit_kills_and_spares_as_it_did_on_the_gpu():
    directory = SHARED / "traces"
    [trace] = read_traces(directory / "dense_var_nat.pickle.gz")
    core = trace.to_core()

    def survives(policy: str, gib: float) -> bool:
        return _core.replay(core, policy, {"limit_bytes": int(gib * GIB)})["died_at_event"] < 0

    assert not survives("native", 44)
    assert survives("native", 48)
    assert survives("expandable", 42)


def test_half_a_million_events_replay_in_seconds():
    import time
    history = History()
    window: list[int] = []
    for i in range(170_000):
        window.append(history.allocate(512 * (1 + i * 7919 % 9000)))
        if len(window) > 300:
            history.free(window.pop(i * 31 % 300))
    core = history.core()
    began = time.process_time()
    _core.replay(core, "native", {})
    assert time.process_time() - began < 2.0


def test_the_setting_may_change_and_blocks_of_the_one_kind_never_serve_the_other():
    history = History()
    first = history.allocate(30 * MIB)
    history.free(first)
    history.allocate(30 * MIB)
    run = _core.SimulatedRun(history.core(), {})
    run.use_expandable_segments(True)
    run.advance(2)
    assert run.reserved_bytes == 40 * MIB  # two pages of 20
    run.use_expandable_segments(False)
    run.advance(history.core().num_events)
    assert run.reserved_bytes == 70 * MIB
    assert run.pinned_bytes == 30 * MIB
    run.empty_cache()
    assert run.reserved_bytes == 30 * MIB


def test_pinned_pages_are_what_an_empty_cache_leaves():
    history = History()
    blocks = [history.allocate(size * MIB) for size in (1, 30, 3, 50, 7, 90, 2, 11)]
    for block in blocks[1::2]:
        history.free(block)
    run = _core.SimulatedRun(history.core(), {})
    run.use_expandable_segments(True)
    run.advance(history.core().num_events)
    pinned = run.pinned_bytes
    assert 0 < pinned < run.reserved_bytes
    run.empty_cache()
    assert run.reserved_bytes == pinned
