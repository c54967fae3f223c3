"""Histories, snapshots and traces of memory."""

from __future__ import annotations

import contextlib
import pickle
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
from features_figures import byte_tensor
from parity import MIB, FeatureTable, Unavailable

features = FeatureTable("history")


@contextlib.contextmanager
def recorded(**options) -> Iterator[None]:
    torch.cuda.memory._record_memory_history(**{"max_entries": 10_000, "stacks": "python", **options})
    try:
        yield
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)


def block_of(snapshot: dict, address: int) -> dict:
    (block,) = [b for segment in snapshot["segments"] for b in segment["blocks"] if b["address"] == address]
    return block


def entries_of(snapshot: dict, address: int) -> list[dict]:
    return [entry for entry in snapshot["device_traces"][0] if entry["addr"] == address]


def frame_names(entry: dict) -> list[str]:
    """The functions of this file in a block's or an entry's frames, innermost first."""
    return [frame["name"] for frame in entry.get("frames", []) if frame["filename"].endswith("features_history.py")]


@features("_record_memory_history and _snapshot: blocks with frames, alloc and free events in order",
          why="events about the arena's own extents are left out; a block that waits for another stream completes at once")
def blocks_and_events(side):
    with recorded(stacks="all"):
        kept, freed = byte_tensor(123_456), byte_tensor(7_000)
        gone = freed.data_ptr()
        del freed
        snapshot = torch.cuda.memory._snapshot()
        block, trace = block_of(snapshot, kept.data_ptr()), snapshot["device_traces"][0]
        of_freed = entries_of(snapshot, gone)[-3:]
        result = {
            "state": block["state"], "requested": block["requested_size"], "size": block["size"], "keys": sorted(block),
            "frames": frame_names(block), "segment keys": sorted(snapshot["segments"][0]),
            "actions of the kept": [entry["action"] for entry in entries_of(snapshot, kept.data_ptr())][-1:],
            "actions of the freed": [entry["action"] for entry in of_freed],
            "sizes of the freed": [entry["size"] for entry in of_freed],
            "entry keys": sorted(of_freed[0]),
            "in order": [entry["time_us"] for entry in trace] == sorted(entry["time_us"] for entry in trace),
            "blocks fill their segments": all(sum(block["size"] for block in segment["blocks"]) == segment["total_size"]
                                              for segment in snapshot["segments"]),
            "allocated": sum(s["allocated_size"] for s in snapshot["segments"]) == torch.cuda.memory_allocated(),
        }
        del kept
    return result


@features("_record_memory_history(context='alloc' and 'state', stacks='python')")
def contexts(side):
    rows = []
    for context in ("alloc", "state", None):
        with recorded(context=context):
            kept, freed = byte_tensor(30_000), byte_tensor(20_000)
            gone = freed.data_ptr()
            del freed
            snapshot = torch.cuda.memory._snapshot()
            rows.append([frame_names(block_of(snapshot, kept.data_ptr()))[:1],
                         *(frame_names(entry)[:1] for entry in entries_of(snapshot, gone)[-3:])])
            del kept
    return rows


@features("_record_memory_history(enabled='state') and a history that is switched off")
def only_the_state(side):
    with recorded(enabled="state"):
        kept = byte_tensor(30_000)
        frames = frame_names(block_of(torch.cuda.memory._snapshot(), kept.data_ptr()))[:1]
    silent = byte_tensor(40_000)
    snapshot = torch.cuda.memory._snapshot()
    rows = [frames, frame_names(block_of(snapshot, silent.data_ptr())), len(entries_of(snapshot, silent.data_ptr()))]
    del kept, silent
    return rows


@features("_record_memory_history(max_entries=20) keeps the last twenty")
def few_entries(side):
    with recorded(max_entries=20):
        for _ in range(30):
            byte_tensor(30_000)
        last = byte_tensor(40_000)
        trace = torch.cuda.memory._snapshot()["device_traces"][0]
        row = [len(trace), trace[-1]["action"], trace[-1]["addr"] == last.data_ptr(), trace[-1]["size"]]
        del last
    return row


@features("_record_memory_history(clear_history=True, skip_actions=['free_requested'])")
def skipped_actions(side):
    with recorded():
        byte_tensor(30_000)
        try:
            torch.cuda.memory._record_memory_history(max_entries=100, clear_history=True, skip_actions=["free_requested"])
        except TypeError as error:
            raise Unavailable(f"torch {torch.__version__} has no skip_actions") from error
        byte_tensor(50_000)
        return [entry["action"] for entry in torch.cuda.memory._snapshot()["device_traces"][0]
                if entry["action"] in ("alloc", "free_requested", "free_completed")]


@features("_dump_snapshot and every view of _memory_viz")
def memory_viz(side):
    from torch.cuda import _memory_viz

    with recorded(), tempfile.TemporaryDirectory() as folder:
        kept = [byte_tensor(123_456), byte_tensor(2 * MIB)]
        byte_tensor(9_000)
        path = Path(folder, "snapshot.pickle")
        torch.cuda.memory._dump_snapshot(str(path))
        snapshot = pickle.loads(path.read_bytes())
        pages = {name: len(getattr(_memory_viz, name)(snapshot)) > 1000 for name in ("trace_plot", "segment_plot")}
        texts = {name: len(getattr(_memory_viz, name)(snapshot)) > 100 for name in ("segsum", "trace")}
        graphs = {name: "features_history.py" in getattr(_memory_viz, name)(snapshot, format_flamegraph="".join)
                  for name in ("memory", "segments")}
        del kept
    return {**pages, **texts, **graphs}


@features("memory_snapshot: states of blocks that are live, freed, and waiting for a stream")
def states(side):
    stream = torch.cuda.Stream()
    live, waiting = byte_tensor(30_000), byte_tensor(60_000)
    addresses = live.data_ptr(), waiting.data_ptr()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
    waiting.record_stream(stream)
    del waiting
    segments = torch.cuda.memory_snapshot()
    found = {block["address"]: block["state"] for segment in segments for block in segment["blocks"]}
    torch.cuda.synchronize()
    rows = [found[address] for address in addresses]
    del live
    return rows


@features("_set_memory_metadata beside each allocation")
def metadata(side):
    if not hasattr(torch.cuda.memory, "_set_memory_metadata"):
        raise Unavailable(f"torch {torch.__version__} has no _set_memory_metadata")
    with recorded():
        torch.cuda.memory._set_memory_metadata("phase one")
        tensor = byte_tensor(30_000)
        torch.cuda.memory._set_memory_metadata("")
        entry = entries_of(torch.cuda.memory._snapshot(), tensor.data_ptr())[-1]
        del tensor
    return entry.get("user_metadata")


@features("an out-of-memory error in the history")
def oom_in_the_history(side):
    first = byte_tensor(30_000)  # keeps the arena, which would give way before the error
    with recorded():
        side.limit(128 * MIB)
        try:
            byte_tensor(4096 * MIB)
        except torch.OutOfMemoryError:
            pass
        kept = byte_tensor(30_000)
        entries = [entry for entry in torch.cuda.memory._snapshot()["device_traces"][0] if entry["action"] == "oom"]
        del kept, first
    return [[entry["size"], sorted(entry)] for entry in entries]


@features("torch.profiler: export_memory_timeline",
          why="what torch itself notes beside a block counts the whole arena; the blocks are the same")
def memory_timeline(side):
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    layer = torch.nn.Linear(256, 256, device="cuda")
    with torch.profiler.profile(activities=activities, profile_memory=True, record_shapes=True, with_stack=True) as profiler:
        layer(torch.ones(64, 256, device="cuda")).sum().backward()
    if not hasattr(profiler, "export_memory_timeline"):
        raise Unavailable(f"torch {torch.__version__} has no export_memory_timeline")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "timeline.json")
        profiler.export_memory_timeline(str(path), device="cuda:0")
        return path.stat().st_size > 100


@features("callbacks of torch.cuda._gpu_trace for allocations and frees", why="what the CUDA sanitizer of torch stands on")
def gpu_trace(side):  # the last one: the trace cannot be switched off again
    from torch.cuda import _gpu_trace

    seen: list[list] = []
    _gpu_trace.register_callback_for_memory_allocation(lambda address: seen.append(["allocated", address]))
    _gpu_trace.register_callback_for_memory_deallocation(lambda address: seen.append(["freed", address]))
    torch._C._activate_gpu_trace()
    tensor = byte_tensor(30_000)
    small, address = [what for what, _ in seen], tensor.data_ptr()
    del tensor
    known = [at == address for _, at in seen]
    large = byte_tensor(200 * MIB)
    del large
    return [small, known, [what for what, _ in seen]]
