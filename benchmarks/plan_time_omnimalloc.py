"""Runs one allocator of omnimalloc on one instance; plan_time.py starts it in the interpreter that has omnimalloc.

    python benchmarks/plan_time_omnimalloc.py INSTANCE.csv ALLOCATOR SECONDS    (or --version)

Prints {"peak_bytes", "seconds"} or {"error"}. SECONDS is the budget of the allocators that have one.
"""

from __future__ import annotations

import json
import sys
import time
from importlib import util

import omnimalloc
from omnimalloc import allocators


def run(path: str, name: str, seconds: float) -> dict:
    with open(path) as file:
        rows = [tuple(map(int, line.split(","))) for line in list(file)[1:]]
    allocations = [omnimalloc.Allocation(id=i, size=s, start=a, end=b) for i, a, b, s in rows]
    allocator = {
        "omni": lambda: "omni",
        "supermalloc": lambda: allocators.SupermallocAllocator(timeout=seconds),
        "minimalloc": lambda: allocators.MinimallocAllocator(timeout=seconds),
    }[name]()
    started = time.perf_counter()
    try:
        placed = omnimalloc.allocate(allocations, allocator)
    except Exception as error:  # a planner that gives up is a row of the table
        return {"error": type(error).__name__}
    seconds = time.perf_counter() - started
    return {"peak_bytes": max(a.offset + a.size for a in placed), "seconds": seconds}


if __name__ == "__main__":
    if sys.argv[1] == "--version":
        # It only wraps minimalloc, which is a package of its own.
        names = ["omni", "supermalloc", *(["minimalloc"] if util.find_spec("minimalloc") else [])]
        print(omnimalloc.__version__, *names)
    else:
        print(json.dumps(run(sys.argv[1], sys.argv[2], float(sys.argv[3]))))
