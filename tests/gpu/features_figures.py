"""Torch's own figures of memory."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import torch
from parity import MIB, FeatureTable, Unavailable, without_numbers

features = FeatureTable("figures")
POOLS = ("all", "small_pool", "large_pool")


def byte_tensor(size: int) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8, device="cuda")


def workload() -> list[torch.Tensor]:
    """Small and large blocks of which one is freed again; what is live at the end is returned."""
    kept = [byte_tensor(size) for size in (100, 5000, 3 * MIB, 700_000)]
    byte_tensor(2 * MIB)
    kept.pop(1)
    return kept


@features("torch.cuda.memory_stats: every key, flat and nested")
def keys_of_memory_stats(side):
    kept = workload()
    nested = torch.cuda.memory_stats_as_nested_dict()
    del kept
    return {"flat": sorted(torch.cuda.memory_stats()), "nested": sorted(nested), "pools": sorted(nested["allocated_bytes"])}


@features("torch.cuda.memory_stats: allocated, active and requested, now, in total and at the peak",
          why="the peak of requested bytes is true to within the rounding of the blocks that lived then")
def values_of_memory_stats(side):
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.reset_accumulated_memory_stats()
    before = torch.cuda.memory_stats()
    kept = workload()
    during = torch.cuda.memory_stats()
    del kept
    after = torch.cuda.memory_stats()
    rows = {}
    for metric in ("allocated_bytes", "active_bytes", "requested_bytes", "allocation", "active"):
        for pool in POOLS:
            for name in ("current", "allocated", "freed"):
                key = f"{metric}.{pool}.{name}"
                rows[key] = [during[key] - before[key], after[key] - before[key]]
    for metric in ("allocated_bytes", "active_bytes", "allocation", "active"):
        for pool in POOLS:
            rows[f"{metric}.{pool} peak"] = during[f"{metric}.{pool}.peak"] - before[f"{metric}.{pool}.current"]
    peak = during["requested_bytes.all.peak"] - before["requested_bytes.all.current"]
    rows["requested peak, to within the rounding of 5 blocks"] = 0 <= rows["allocated_bytes.all peak"] - peak + 512 * 5 <= 512 * 10
    return rows


@features("memory_allocated, max_memory_allocated, reset_peak_memory_stats")
def allocated_and_its_peak(side):
    torch.cuda.reset_peak_memory_stats()
    base = torch.cuda.memory_allocated()
    seen = []

    def look() -> None:
        seen.append([torch.cuda.memory_allocated() - base, torch.cuda.max_memory_allocated() - base])

    first = byte_tensor(20 * MIB)
    look()
    del first
    look()
    second = byte_tensor(100 * MIB)  # more than the arena holds: both kinds of block in one peak
    look()
    third = byte_tensor(20 * MIB)
    look()
    del second
    torch.cuda.reset_peak_memory_stats()
    look()
    del third
    torch.cuda.reset_peak_memory_stats()
    look()
    return seen


@features("memory_reserved, max_memory_reserved, empty_cache",
          why="an active arena stays reserved, and empty_cache gives it back when its plan has ended")
def reserved(side):
    torch.cuda.reset_peak_memory_stats()
    first = byte_tensor(30 * MIB)
    covers = torch.cuda.memory_reserved() >= torch.cuda.memory_allocated()
    second = byte_tensor(200 * MIB)
    grew = torch.cuda.memory_reserved()
    del first, second
    torch.cuda.empty_cache()
    idle = torch.cuda.memory_reserved()
    side.close()
    torch.cuda.empty_cache()
    return {"covers what is allocated": covers, "the peak covers it": torch.cuda.max_memory_reserved() >= grew,
            "given back at the end, to within 64 MiB": torch.cuda.memory_reserved() <= 64 * MIB,
            "shown MiB while allocated": grew // MIB, "shown MiB after empty_cache": idle // MIB,
            "shown MiB after the plan": torch.cuda.memory_reserved() // MIB}


@features("reserved memory is what the driver sees", arena_bytes=512 * MIB,
          why="extents of the arena are blocks of torch's allocator, so its total stays the truth")
def reserved_is_the_drivers(side):
    kept = byte_tensor(100 * MIB)
    segments = torch.cuda.memory_snapshot()
    total = sum(segment["total_size"] for segment in segments)
    del kept
    return {"segments make up what is reserved": total == torch.cuda.memory_reserved(),
            "total_memory": torch.cuda.mem_get_info()[1] == torch.cuda.get_device_properties(0).total_memory}


@features("torch.cuda.memory_summary")
def memory_summary(side):
    kept = workload()
    text = torch.cuda.memory_summary()
    abbreviated = torch.cuda.memory_summary(abbreviated=True)
    del kept
    return {"rows": [without_numbers(line.split("|")[1].strip()) for line in text.splitlines() if line.count("|") > 2],
            "abbreviated": len(abbreviated.splitlines())}


@features("caching_allocator_alloc, caching_allocator_delete")
def raw_blocks(side):
    base = torch.cuda.memory_allocated()
    first = torch.cuda.caching_allocator_alloc(100_000)
    stream = torch.cuda.Stream()
    second = torch.cuda.caching_allocator_alloc(3 * MIB, stream=stream)
    during = torch.cuda.memory_allocated() - base
    torch.cuda.caching_allocator_delete(second)
    torch.cuda.caching_allocator_delete(first)
    return [during, torch.cuda.memory_allocated() - base]


@features("caching_allocator_enable(False) and back", why="uncached requests pass us by")
def caching_switch(side):
    first = torch.ones(1000, device="cuda")
    torch.cuda.memory.caching_allocator_enable(False)
    try:
        second = torch.ones(1000, device="cuda")
        total = float((first + second).sum())
        del second
    finally:
        torch.cuda.memory.caching_allocator_enable(True)
    third = torch.ones(1000, device="cuda")
    return [total, float((first + third).sum())]


@features("list_gpu_processes, ipc_collect, mem_get_info, get_allocator_backend")
def other_answers(side):
    kept = workload()
    torch.cuda.ipc_collect()
    free, total = torch.cuda.mem_get_info()
    try:
        processes = without_numbers(torch.cuda.list_gpu_processes().splitlines()[0])
    except Exception as error:  # the driver's library answers on some machines only
        processes = type(error).__name__
    del kept
    return {"processes": processes, "free is below total": free < total,
            "backend": torch.cuda.get_allocator_backend()}


@features("set_per_process_memory_fraction, get_per_process_memory_fraction")
def fraction(side):
    kept = workload()
    torch.cuda.set_per_process_memory_fraction(0.25)
    value = torch.cuda.get_per_process_memory_fraction()
    torch.cuda.set_per_process_memory_fraction(1.0)
    del kept
    try:
        torch.cuda.set_per_process_memory_fraction(1.5)
    except ValueError as error:
        return [value, str(error)]
    return [value, "accepted 1.5"]


@features("torch.accelerator.memory_stats, memory_allocated, empty_cache")
def accelerator(side):
    if not hasattr(torch.accelerator, "memory_allocated"):
        raise Unavailable(f"torch {torch.__version__} has no torch.accelerator.memory_allocated")
    base = torch.accelerator.memory_allocated()
    torch.accelerator.reset_peak_memory_stats()
    kept = workload()
    rows = [torch.accelerator.memory_allocated() - base, torch.accelerator.max_memory_allocated() - base,
            sorted(torch.accelerator.memory_stats())]
    del kept
    torch.accelerator.empty_cache()
    return [*rows, torch.accelerator.memory_allocated() - base]


@features("pinned host memory and its figures", why="host memory is none of ours")
def pinned(side):
    kept = workload()
    before = torch.cuda.host_memory_stats()
    host = torch.empty(MIB, dtype=torch.uint8, pin_memory=True)
    device = host.to("cuda", non_blocking=True)
    after = torch.cuda.host_memory_stats()
    equal = bool((device.cpu() == host).all())
    del kept, host, device
    return {"keys": sorted(after), "equal": equal,
            "grown": {key: after[key] - before[key] for key in sorted(after) if key.endswith("bytes.current")}}


@features("a storage that is resized, and the deleter of every block")
def storages(side):
    tensor = torch.arange(1000, device="cuda")
    tensor.resize_(100_000)
    kept = bool(torch.equal(tensor[:1000], torch.arange(1000, device="cuda")))
    standard = torch._C._has_Standard_Deleter(tensor.untyped_storage()._cdata)
    tensor.untyped_storage().resize_(0)
    return [kept, standard, tensor.untyped_storage().nbytes()]


@features("change_current_allocator after CUDA has started", why="refused with torch's own error")
def change_allocator(side):
    kept = workload()
    other = torch.cuda.memory.CUDAPluggableAllocator("libc.so.6", "malloc", "free")  # never called
    try:
        torch.cuda.memory.change_current_allocator(other)
    except RuntimeError as error:
        return without_numbers(str(error).splitlines()[0])
    finally:
        del kept
    return "accepted"


def memory_events(profiler: torch.profiler.profile) -> list[int]:
    """The bytes of the trace's memory events on the device, in order."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    memory = [event for event in events if event.get("name") == "[memory]" and event["args"].get("Device Type") == 1]
    return [event["args"]["Bytes"] for event in sorted(memory, key=lambda event: event["ts"])]


@features("torch.profiler with profile_memory=True",
          why="the running total that torch notes beside a block of its own counts the whole arena")
def profiler(side):
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities, profile_memory=True, record_shapes=True) as profiler:
        tensor = torch.ones(300_000, dtype=torch.uint8, device="cuda")
        product = tensor + 1
        del tensor, product
        large = byte_tensor(200 * MIB)
        del large
    table = profiler.key_averages().table(sort_by="self_device_memory_usage", row_limit=5)
    return {"events": [event.self_device_memory_usage for event in profiler.events() if event.self_device_memory_usage],
            "trace": memory_events(profiler), "table has the column": "Self CUDA Mem" in table}


@features("_set_allocator_settings while running")
def settings(side):
    torch.cuda.memory._set_allocator_settings("garbage_collection_threshold:0.9")
    kept = workload()
    base = torch.cuda.memory_allocated()
    more = workload()
    grown = torch.cuda.memory_allocated() - base
    del kept, more
    try:
        torch.cuda.memory._set_allocator_settings("no_such_option:1")
    except Exception as error:
        return [grown, type(error).__name__]
    return [grown, "accepted"]
