"""Trains real models on a CUDA device with torch's own allocator, with expandable segments, and with us, first and second run.

    python benchmarks/gpu_training.py [--workloads dense,lora_var,...] [--out results.json]
    python benchmarks/gpu_training.py --limits 1.01,1.05 [...]   the same under a memory fraction: ratios to the allocated peak
    python benchmarks/gpu_training.py --record DIR [...]         writes the allocation history of each run for `stalloc replay`

The allocator `again` is the native one once more: how far two equal runs lie apart, in time and in their losses.
Each run is a process of its own with the same seed; the worker is a script that does not know us. A process that waits
for its turn has already imported its libraries. Prints a table and writes everything it measured as JSON with the versions.
"""

from __future__ import annotations

import argparse
import fcntl
import gzip
import json
import os
import pickle
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ALLOCATORS = ("native", "expandable", "first", "second")
SETTLED_STEP = 7  # peaks and times count from here on: the first run is active before


def train(name: str, out: Path) -> None:
    """The worker. Nothing in it knows about stalloc."""
    import torch
    import workloads
    if "zero" in workloads.WORKLOADS[name]:
        import deepspeed  # noqa: F401
    torch.nn.Linear(1, 1)
    import transformers.models.llama.modeling_llama  # noqa: F401
    fcntl.flock(os.open(os.environ["BENCHMARK_TURN"], os.O_CREAT | os.O_RDWR), fcntl.LOCK_EX)  # until this process ends
    meter = Meter(torch)
    try:
        run = workloads.Run(name, device="cuda" if torch.cuda.is_available() else "cpu",
                            num_steps=int(os.environ.get("BENCHMARK_STEPS", "0")) or None)
        if run.work.get("kind") == "trainer":
            with tempfile.TemporaryDirectory() as folder:
                workloads.train_with_trainer(run, meter.begin, meter.end, folder)
        else:
            for update in run.steps():
                meter.begin()
                meter.end(update())
    except torch.OutOfMemoryError as error:
        meter.failure = str(error)[:300]
    out.write_text(json.dumps(meter.result()))


class Meter:
    """Times, losses and peaks of one run, and its history where that is asked for."""

    def __init__(self, torch: Any) -> None:
        self.torch, self.cuda, self.failure = torch, torch.cuda if torch.cuda.is_available() else None, None
        self.losses: list[str] = []
        self.seconds: list[float] = []
        self.cpu_seconds: list[float] = []  # of all threads: what a busy host disturbs less
        self.marks: list[float] = []
        self.rows: list[list[int]] = []
        self.before = (0, 0)
        self.record = os.environ.get("BENCHMARK_RECORD")
        if self.cuda and "BENCHMARK_LIMIT_BYTES" in os.environ:
            total = self.cuda.get_device_properties(0).total_memory
            self.cuda.set_per_process_memory_fraction(int(os.environ["BENCHMARK_LIMIT_BYTES"]) / total)
        if self.cuda and self.record:
            self.cuda.memory._record_memory_history(context=None, max_entries=5_000_000)

    def begin(self) -> None:
        if self.cuda:
            if len(self.seconds) == SETTLED_STEP:
                self.before = (self.cuda.max_memory_allocated(), self.cuda.max_memory_reserved())
                self.cuda.reset_peak_memory_stats()
            self.cuda.synchronize()
            self._mark()
        self.began, self.cpu_began = time.perf_counter(), time.process_time()

    def end(self, loss: float) -> None:
        if self.began:
            self.cpu_seconds.append(time.process_time() - self.cpu_began)
            if self.cuda:
                self.cuda.synchronize()
            self.seconds.append(time.perf_counter() - self.began)
            self.began = 0.0
        if loss:
            self.losses.append(float(loss).hex())

    def _mark(self) -> None:
        if self.record:
            stats = self.cuda.memory_stats()
            self.rows.append([stats["allocated_bytes.all.current"], stats["reserved_bytes.all.current"],
                              stats["allocated_bytes.all.peak"], stats["reserved_bytes.all.peak"]])
            time.sleep(0.0002)
            self.marks.append(time.time() * 1e6)
            time.sleep(0.0002)

    def result(self) -> dict[str, Any]:
        result: dict[str, Any] = {"losses": self.losses, "step_seconds": self.seconds, "cpu_seconds": self.cpu_seconds,
                                  "out_of_memory": self.failure, "versions": {"torch": self.torch.__version__}}
        if not self.cuda:
            return result
        stats, device = self.cuda.memory_stats(), self.cuda.get_device_name()
        steady = (self.cuda.max_memory_allocated(), self.cuda.max_memory_reserved())
        if self.record:
            self._write_history(Path(self.record))
        return result | {
            "steady_allocated": steady[0], "steady_reserved": steady[1], "whole_allocated": max(steady[0], self.before[0]),
            "whole_reserved": max(steady[1], self.before[1]), "num_alloc_retries": stats["num_alloc_retries"],
            "num_device_alloc": stats["num_device_alloc"], "versions": {"torch": self.torch.__version__, "device": device}}

    def _write_history(self, path: Path) -> None:
        """The layout of `torch.cuda.memory._snapshot()` without frames, the marks as event indices, and the truth beside it."""
        self._mark()
        traces = [[{key: event[key] for key in ("action", "addr", "size", "stream", "time_us")} for event in trace if "addr" in event]
                  for trace in self.cuda.memory._snapshot()["device_traces"]]
        times = [event["time_us"] for event in traces[0]]
        with gzip.open(path.with_suffix(".pickle.gz"), "wb") as file:
            pickle.dump({"segments": [], "device_traces": traces}, file)
        marks = [sum(time_us < mark for time_us in times) for mark in self.marks]
        path.with_suffix(".marks.json").write_text(json.dumps(marks))
        path.with_suffix(".truth.json").write_text(json.dumps({
            "columns": ["allocated", "reserved", "allocated_peak", "reserved_peak"], "rows": self.rows}))


def start(workload: str, allocator: str, folder: Path, prefix: list[str] | None = None,
          extra: dict[str, str] | None = None) -> tuple[subprocess.Popen[str], Path, Path]:
    """Starts a worker; it trains when those that were started before have ended."""
    from workloads import WORKLOADS
    stem = f"{workload}-{allocator}-{time.monotonic_ns()}"
    out, summary = folder / f"{stem}.json", folder / f"{stem}-summary.json"
    environment = {**os.environ, "CUBLAS_WORKSPACE_CONFIG": ":4096:8", "HF_HUB_OFFLINE": "1", "MASTER_ADDR": "127.0.0.1",
                   "BENCHMARK_TURN": str(folder / "turn"), "BENCHMARK_OUT": str(out), "MASTER_PORT": str(_free_port()), "RANK": "0",
                   "LOCAL_RANK": "0", "WORLD_SIZE": "1", **(extra or {})}
    if allocator == "expandable":
        environment["PYTORCH_ALLOC_CONF"] = environment["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
    if allocator in ("first", "second"):
        environment |= {"STALLOC_CACHE_DIR": str(folder / "plans"), "STALLOC_SUMMARY_FILE": str(summary)}
        # DeepSpeed: the section of its configuration asks for us
        environment |= {"BENCHMARK_SECTION": "1"} if "zero" in WORKLOADS[workload] else {"STALLOC_ENABLED": "1"}
    command = [*(prefix or []), sys.executable, __file__, "--worker", workload]  # the same command in every run
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return process, out, summary


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def finish(what: str, started: tuple[subprocess.Popen[str], Path, Path]) -> dict[str, Any]:
    """What the worker measured, and our own summary where we were at work."""
    process, out, summary = started
    try:
        log = process.communicate(timeout=400)[0]
    except subprocess.TimeoutExpired:
        process.kill()
        log = process.communicate()[0] + "\ntimed out"
    if not out.exists():
        print(f"{what} FAILED rc={process.returncode}\n{log[-3000:]}", flush=True)
        return {"failed": process.returncode, "log": log[-6000:]}
    result: dict[str, Any] = json.loads(out.read_text())
    result["log"] = [line for line in log.splitlines() if "stalloc" in line.lower() or "ERROR SUMMARY" in line]
    if process.returncode != 0:
        result["failed_after"] = process.returncode, log[-2000:]
    if summary.exists():
        result["summary"] = json.loads(summary.read_text())
    return result


def row(what: str, result: dict[str, Any], native: dict[str, Any]) -> str:
    if "whole_allocated" not in result:
        return f"{what:26} FAILED {result.get('out_of_memory')}"
    baseline = native if native.get("step_seconds") else result
    seconds, cpu_seconds = (statistics.median(result[what][SETTLED_STEP:] or [float("nan")]) for what in ("step_seconds", "cpu_seconds"))
    times, cpu_times = (_times(result, baseline, what) for what in ("step_seconds", "cpu_seconds"))
    summary = result.get("summary", {})
    same = "same" if result["losses"] == native.get("losses") else "DIFFERENT"
    return (f"{what:26} E whole {result['whole_allocated'] / result['whole_reserved']:.4f} steady "
            f"{result['steady_allocated'] / max(1, result['steady_reserved']):.4f} reserved {result['whole_reserved'] / 2**30:7.3f}"
            f" allocated {result['whole_allocated'] / 2**30:7.3f} GiB, step {seconds * 1e3:7.1f} ms "
            f"({times:.4f}), CPU {cpu_seconds * 1e3:7.1f} ms ({cpu_times:.4f})"
            f", losses {same}, {len(result['step_seconds'])} steps, retries {result['num_alloc_retries']}"
            f"{' OUT OF MEMORY' if result['out_of_memory'] else ''} {summary.get('state', '')} {summary.get('activated_at_step', '')}"
            f" hits {summary.get('hit_rate')} {summary.get('fallbacks', '')} {summary.get('reason', '')}"
            f"{' EXIT ' + str(result['failed_after'][0]) if 'failed_after' in result else ''}")


def _times(result: dict[str, Any], baseline: dict[str, Any], what: str) -> float:
    """The median of what each step takes of the same step of the other run: steps have lengths of their own."""
    pairs = zip(result[what][SETTLED_STEP:], baseline[what][SETTLED_STEP:], strict=False)
    return statistics.median([one / other for one, other in pairs] or [float("nan")])


def measure(jobs: list[tuple[str, str, dict[str, str]]], folder: Path, out: Path, results: dict[str, Any]) -> None:
    """Runs the jobs (workload, allocator, environment) one after another, and starts each while the one before still trains."""
    ahead = None
    for number, (workload, allocator, extra) in enumerate(jobs):
        current = ahead or start(workload, allocator, folder, extra=extra)
        following, ahead = jobs[number + 1:number + 2], None
        if following and following[0][1] != "second":  # a second run finds what the first one left at its end
            time.sleep(0.5)  # so that the turns come in this order
            ahead = start(following[0][0], following[0][1], folder, extra=following[0][2])
        what = " ".join([workload, allocator, *extra.get("BENCHMARK_LABEL", "").split()])
        result = finish(what, current)
        results.setdefault(workload, {})[what.removeprefix(workload + " ")] = result
        print(row(what, result, results[workload].get("native", {})), flush=True)
        for line in result["log"] if isinstance(result["log"], list) else []:
            print("    " + line[:200], flush=True)
        out.write_text(json.dumps(results, indent=1))


def main() -> int:
    from workloads import WORKLOADS
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worker", choices=sorted(WORKLOADS))
    parser.add_argument("--workloads", default="dense,dense_ckpt,dense_var,zero3_ckpt")
    parser.add_argument("--allocators", default=",".join(ALLOCATORS))
    parser.add_argument("--record", type=Path, metavar="DIR", help="write histories; times mean nothing then")
    parser.add_argument("--limits", help="ratios to native's allocated peak, for instance 1.01,1.05; needs native first")
    parser.add_argument("--memcheck", action="store_true", help="also run the tiny workload under compute-sanitizer")
    parser.add_argument("--out", type=Path, default=Path("gpu_training.json"))
    args = parser.parse_args()
    if args.worker:
        train(args.worker, Path(os.environ.get("BENCHMARK_OUT", args.out)))
        return 0
    results: dict[str, Any] = {}
    allocators = args.allocators.split(",")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        jobs = [(workload, allocator, {"BENCHMARK_RECORD": str(args.record / f"{workload}_{allocator}")} if args.record else {})
                for workload in args.workloads.split(",") for allocator in allocators]
        measure(jobs, folder, args.out, results)
        for ratio in args.limits.split(",") if args.limits else []:
            measure([(workload, allocator, {"BENCHMARK_LIMIT_BYTES": str(int(float(ratio) * results[workload]["native"]["whole_allocated"])),
                                            "BENCHMARK_LABEL": f"limit {ratio}"})
                     for workload in args.workloads.split(",") for allocator in allocators], folder, args.out, results)
        if args.memcheck:
            finish("tiny first", start("tiny", "first", folder))
            result = finish("tiny memcheck", start("tiny", "second", folder, ["compute-sanitizer", "--tool", "memcheck"]))
            results["memcheck"] = result
            summary = result.get("summary", {})
            print("memcheck", [line for line in result["log"] if "ERROR SUMMARY" in line] or result["log"], summary.get("state"),
                  "hits", summary.get("hit_rate"))
            args.out.write_text(json.dumps(results, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
