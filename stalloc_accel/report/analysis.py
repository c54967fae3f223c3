"""All that `stalloc analyze` knows about one device's memory."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from stalloc_accel.replay import least_limit, replay
from stalloc_accel.report.holders import Holder, holders_of
from stalloc_accel.report.lifetimes import Lifetimes, lifetimes_of
from stalloc_accel.report.planned import PlannedMemory, plan_for
from stalloc_accel.report.reserved import Ranges, ReservedMemory
from stalloc_accel.report.verdict import (Advice, Costs, FailedRequest, Shares, gib, judge_failure, judge_run,
                                          judge_state)
from stalloc_accel.snapshot import ALLOC, ALLOCATED, FREE, OOM, Device, History, Snapshot
from stalloc_accel.trace import RecordedTrace

_MAX_LIMIT_EVENTS = 1_000_000  # above, the least limits would take too long
_MAX_LIMIT_STREAMS = 1000


@dataclasses.dataclass(frozen=True, kw_only=True)
class Analysis:
    name: str
    device_index: int
    num_events: int
    num_rebuilt: int
    num_steps: int
    steps_from: str
    verdict: str
    explanation: str
    failed: FailedRequest | None
    would_have_fitted: bool | None  # the failed request, with a plan
    shares: Shares  # at the moment of the failure, else of the allocated peak
    costs: Costs | None
    judged_event: int | None
    allocated_peak_bytes: int
    reserved_peak_bytes: int
    reserved_from: str  # "history", "state" or "model"
    plan: PlannedMemory | None
    expandable_peak_bytes: int | None
    limits: dict[str, Any]
    advice: list[Advice]
    holders: list[Holder]
    persistent_bytes: int
    temporary_bytes: int
    groups: list[dict[str, Any]]  # by stream and pool
    lives: Lifetimes | None
    allocated_over_time: np.ndarray
    reserved_over_time: np.ndarray
    ranges: Ranges | None

    def to_json(self) -> dict[str, Any]:
        plan = self.plan
        return {
            "file": self.name, "device": self.device_index, "events": self.num_events, "rebuilt_events": self.num_rebuilt,
            "steps": self.num_steps, "steps_from": self.steps_from,
            "verdict": self.verdict, "explanation": self.explanation,
            "failed_request": None if self.failed is None else {
                "size_bytes": self.failed.size, "device_free_bytes": self.failed.device_free,
                "event": self.failed.event, "would_have_fitted": self.would_have_fitted},
            "moment": self.shares.to_json(), "accounts": None if self.costs is None else self.costs.to_json(),
            "allocated_peak_bytes": self.allocated_peak_bytes, "reserved_peak_bytes": self.reserved_peak_bytes,
            "reserved_from": self.reserved_from,
            "efficiency": self.allocated_peak_bytes / self.reserved_peak_bytes if self.reserved_peak_bytes else None,
            "plan": None if plan is None else {
                "lower_bound_bytes": plan.lower_bound_bytes, "reserved_peak_bytes": plan.reserved_bytes,
                "saving_bytes": self.reserved_peak_bytes - plan.reserved_bytes,
                "streams_apart_bytes": plan.streams_apart_bytes, "seconds": plan.seconds},
            "expandable_reserved_peak_bytes": self.expandable_peak_bytes,
            "limits": self.limits,
            "advice": [one.to_json() for one in self.advice],
            "holders": [dataclasses.asdict(holder) for holder in self.holders],
            "persistent_bytes": self.persistent_bytes, "temporary_bytes": self.temporary_bytes,
            "streams_and_pools": self.groups,
        }


def analyze(device: Device, snapshot: Snapshot | None, trace: RecordedTrace | None, name: str) -> Analysis:
    """`trace`: the device's history, None where the file has only a state."""
    # A snapshot that is a state only may have an event or two, but no allocation.
    if trace is None or not (device.history.action == ALLOC).any():
        return _of_state(device, snapshot, name)
    return _of_history(device, snapshot, trace)


# --- with a history ---

def _of_history(device: Device, snapshot: Snapshot | None, trace: RecordedTrace) -> Analysis:
    core = trace.to_core()
    lives = lifetimes_of(trace, core)
    allocated = lives.allocated_over_time()
    memory = ReservedMemory(device, trace)
    native = replay(core, "native")
    reserved, source = (memory.over_time(), "history") if memory.is_known else (None, "model")
    reserved_peak = int(reserved.max()) if reserved is not None else native.peaks().reserved_bytes
    if reserved is None:
        reserved = np.maximum.accumulate(allocated)
    failed = _failed_request(trace.history)
    event = failed.event if failed is not None else _tightest_moment(reserved, allocated)
    ranges = memory.ranges_at(event) if memory.is_known else None
    stream = failed.stream if failed is not None else _stream_at(trace, event)
    shares, groups = _shares_at(lives, event, ranges, stream, reserved_peak)
    peak_event = int(np.argmax(allocated))
    plan = plan_for(lives, peak_event)
    on_pages = replay(core, "expandable")
    expandable = on_pages.peaks().reserved_bytes if on_pages.survived else None
    was_expandable = ranges is not None and bool(ranges.is_expandable.any())
    costs = Costs(needed=plan.shared_bound_bytes, fragmentation=max(reserved_peak - plan.lower_bound_bytes, 0),
                  streams_apart=plan.streams_apart_bytes, delayed=plan.delayed_bytes)
    verdict, explanation = judge_failure(shares, failed) if failed is not None else judge_run(reserved_peak, costs)
    holder_event = failed.event if failed is not None else peak_event
    alive = lives.alive_at(holder_event)
    persistent = alive & _is_persistent(lives, trace, holder_event)
    persistent_bytes, temporary_bytes = int(lives.size[persistent].sum()), int(lives.size[alive & ~persistent].sum())
    room = None if failed is None else shares.reserved + failed.device_free
    fits = None if failed is None or room is None else _would_have_fitted(lives, failed, plan, room)
    return Analysis(
        name=trace.name, device_index=device.index, num_events=len(device.history), num_rebuilt=trace.num_rebuilt,
        num_steps=trace.num_steps, steps_from=trace.steps_from, verdict=verdict, explanation=explanation, failed=failed,
        would_have_fitted=fits, shares=shares, costs=costs, judged_event=event,
        allocated_peak_bytes=int(allocated.max(initial=0)), reserved_peak_bytes=reserved_peak, reserved_from=source,
        plan=plan, expandable_peak_bytes=expandable, limits=_limits(core, native, plan, len(trace.history), len(np.unique(lives.stream))),
        advice=_advice(shares, failed, fits, reserved_peak, plan, None if was_expandable else expandable, temporary_bytes),
        holders=holders_of(snapshot, lives.stack[alive], lives.size[alive]), persistent_bytes=persistent_bytes,
        temporary_bytes=temporary_bytes, groups=groups, lives=lives, allocated_over_time=allocated,
        reserved_over_time=reserved, ranges=ranges)


def _failed_request(history: History) -> FailedRequest | None:
    """The last out-of-memory event."""
    events = np.flatnonzero(history.action == OOM)
    if len(events) == 0:
        return None
    event = int(events[-1])
    return FailedRequest(event=event, size=int(history.size[event]), device_free=int(history.address[event]),
                         stream=int(history.stream[event]))


def _tightest_moment(reserved: np.ndarray, allocated: np.ndarray) -> int:
    """While most is reserved, when most is in use."""
    return int(np.argmax(np.where(reserved == reserved.max(), allocated, -1)))


def _stream_at(trace: RecordedTrace, event: int) -> int:
    return int(trace.history.stream[event])


def _shares_at(lives: Lifetimes, event: int, ranges: Ranges | None, stream: int,
               reserved_peak: int) -> tuple[Shares, list[dict[str, Any]]]:
    alive, waiting = lives.alive_at(event), lives.awaiting_at(event)
    live, delayed = int(lives.size[alive].sum()), int(lives.size[waiting].sum())
    if ranges is None:
        return Shares(reserved=reserved_peak, live=live, delayed=delayed, stranded=max(reserved_peak - live - delayed, 0),
                      cached=0, elsewhere_stranded=0, elsewhere_cached=0), []
    held = alive | waiting
    return _shares_of_blocks(ranges, lives.address[held], lives.size[held], live, delayed, stream)


def _shares_of_blocks(ranges: Ranges, address: np.ndarray, size: np.ndarray, live: int, delayed: int,
                      stream: int) -> tuple[Shares, list[dict[str, Any]]]:
    index = ranges.index_of(address)
    known = index >= 0
    used = np.bincount(index[known], size[known], len(ranges.address)).astype(np.int64) if len(ranges.address) else np.zeros(0, np.int64)
    used = np.minimum(used, ranges.size)
    free = ranges.size - used
    is_whole = (used == 0)
    own = (ranges.stream == stream) & np.array([pool in ("0.0", "0") for pool in ranges.pool], bool)
    total = int(ranges.size.sum())
    live = min(live, total)
    delayed = min(delayed, total - live)

    def bytes_of(mask: np.ndarray) -> int:
        return int(free[mask].sum())

    shares = Shares(reserved=total, live=live, delayed=delayed, stranded=bytes_of(own & ~is_whole),
                    cached=bytes_of(own & is_whole), elsewhere_stranded=bytes_of(~own & ~is_whole),
                    elsewhere_cached=bytes_of(~own & is_whole))
    return shares, _groups(ranges, used, free, is_whole)


def _groups(ranges: Ranges, used: np.ndarray, free: np.ndarray, is_whole: np.ndarray) -> list[dict[str, Any]]:
    groups: dict[tuple[int, str], dict[str, Any]] = {}
    for stream, pool, size, in_use, left, whole in zip(ranges.stream.tolist(), ranges.pool, ranges.size.tolist(),
                                                       used.tolist(), free.tolist(), is_whole.tolist()):
        group = groups.setdefault((stream, pool), {
            "stream": stream, "pool": pool, "segments": 0, "reserved_bytes": 0, "used_bytes": 0, "stranded_bytes": 0,
            "whole_free_bytes": 0})
        group["segments"] += 1
        group["reserved_bytes"] += size
        group["used_bytes"] += in_use
        group["whole_free_bytes" if whole else "stranded_bytes"] += left
    return sorted((groups[name] for name in sorted(groups)), key=lambda group: -group["reserved_bytes"])


def _is_persistent(lives: Lifetimes, trace: RecordedTrace, event: int) -> np.ndarray:
    """Alive for more than a step about `event`; where no steps are known, for half of the history."""
    steps = trace.step_begin
    if len(steps) > 2:
        step = int(np.median(np.diff(steps)))
        return lives.freed - lives.born > 1.2 * step
    return lives.freed - lives.born > lives.num_events // 2


def _would_have_fitted(lives: Lifetimes, failed: FailedRequest, plan: PlannedMemory, room: int) -> bool:
    """With the failed request placed on top of what was in use at that moment, in a plan as tight as ours is."""
    held = lives.alive_at(failed.event) | lives.awaiting_at(failed.event)
    tightness = plan.reserved_bytes / max(plan.lower_bound_bytes, 1)
    needed = max(int((int(lives.size[held].sum()) + failed.size) * tightness), plan.reserved_bytes)
    return needed <= room


def _limits(core: Any, native: Any, plan: PlannedMemory, num_events: int, num_streams: int) -> dict[str, Any]:
    """The least device limit that survives, by allocator; a plan needs its arena and nothing else."""
    requested = max(native.rounded_peak_bytes, 1)
    limits = {"plan": {"least_bytes": plan.reserved_bytes, "over_allocated_peak": plan.reserved_bytes / requested, "flushes": 0}}
    if num_events > _MAX_LIMIT_EVENTS or num_streams > _MAX_LIMIT_STREAMS:
        return limits
    for policy in ("native", "expandable"):
        unlimited = native if policy == "native" else replay(core, policy)
        if not unlimited.survived:  # a request that no such allocator can serve
            continue
        limits[policy] = least_limit(lambda limit, policy=policy: replay(core, policy, limit_bytes=limit), unlimited)
    return limits


def _advice(shares: Shares, failed: FailedRequest | None, fits: bool | None, reserved_peak: int, plan: PlannedMemory | None,
            expandable_peak: int | None, temporary_bytes: int) -> list[Advice]:
    advice = []
    if plan is not None and plan.reserved_bytes < reserved_peak:
        saving = reserved_peak - plan.reserved_bytes
        end = "" if fits is None else " The failed request would have fitted." if fits else " The failed request would still not fit."
        advice.append(Advice(action="plan", saves_bytes=saving,
                             text=f"Plan it with stalloc-accel: {gib(plan.reserved_bytes)} instead of {gib(reserved_peak)}.{end}"))
    if expandable_peak is not None and expandable_peak < reserved_peak:
        advice.append(Advice(action="expandable_segments", saves_bytes=reserved_peak - expandable_peak,
                             text=f"PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True: {gib(expandable_peak)} by our model."))
    whole = shares.cached + shares.elsewhere_cached
    if whole > 0.02 * shares.reserved:
        advice.append(Advice(action="empty_cache", saves_bytes=whole,
                             text=f"torch.cuda.empty_cache() where the phase changes gives {gib(whole)} back; torch does so "
                                  "itself before it fails."))
    if shares.delayed > 0.02 * shares.reserved:
        advice.append(Advice(action="wait_for_streams", saves_bytes=shares.delayed,
                             text="Blocks given to record_stream come back late: let the stream that allocated them wait "
                                  "for the other, or free them later."))
    # Emptying the cache cures nothing that comes back in the next step, so it comes after what does.
    advice.sort(key=lambda one: (one.action == "empty_cache", -one.saves_bytes))
    if failed is not None and temporary_bytes > 0:
        missing = max(failed.size - failed.device_free - (0 if not fits else shares.free), 0)
        share = min(missing / temporary_bytes, 1.0) if missing else min(failed.size / temporary_bytes, 1.0)
        advice.append(Advice(action="smaller_batch", saves_bytes=int(share * temporary_bytes),
                             text=f"A batch smaller by about {share:.0%}: {gib(temporary_bytes)} of temporary tensors grow with it."))
    elif temporary_bytes > 0:
        advice.append(Advice(action="smaller_batch", saves_bytes=temporary_bytes // 10,
                             text=f"A batch smaller by a tenth saves about a tenth of {gib(temporary_bytes)} of temporary tensors."))
    return advice


# --- with a state only ---

def _of_state(device: Device, snapshot: Snapshot | None, name: str) -> Analysis:
    blocks, segments = device.blocks, device.segments
    order = np.argsort(segments.address, kind="stable")
    ranges = Ranges(address=segments.address[order], size=segments.size[order], stream=segments.stream[order],
                    pool=[segments.pool[i] for i in order], is_expandable=segments.is_expandable[order])
    alive = blocks.state == ALLOCATED
    held = blocks.state != FREE
    failed = _failed_request(device.history)
    stream = failed.stream if failed is not None else _busiest_stream(ranges)
    live = int(blocks.size[alive].sum())
    shares, groups = _shares_of_blocks(ranges, blocks.address[held], blocks.size[held], live,
                                       int(blocks.size[held & ~alive].sum()), stream)
    verdict, explanation = judge_failure(shares, failed) if failed is not None else judge_state(shares)
    # A plan has no holes, as far as a single moment tells.
    fits = None if failed is None else shares.live + shares.delayed + failed.size <= shares.reserved + failed.device_free
    nothing = np.zeros(0, np.int64)
    return Analysis(
        name=name, device_index=device.index, num_events=len(device.history), num_rebuilt=0, num_steps=0, steps_from="none",
        verdict=verdict, explanation=explanation, failed=failed, would_have_fitted=fits,
        shares=shares, costs=None, judged_event=None, allocated_peak_bytes=live, reserved_peak_bytes=shares.reserved,
        reserved_from="state", plan=None, expandable_peak_bytes=None, limits={},
        advice=_advice(shares, failed, fits, shares.reserved, None, None, live if failed is not None else 0),
        holders=holders_of(snapshot, blocks.stack[alive], blocks.size[alive]), persistent_bytes=live, temporary_bytes=0,
        groups=groups, lives=None, allocated_over_time=nothing, reserved_over_time=nothing, ranges=ranges)


def _busiest_stream(ranges: Ranges) -> int:
    if len(ranges.address) == 0:
        return 0
    streams, index = np.unique(ranges.stream, return_inverse=True)
    return int(streams[np.argmax(np.bincount(index, ranges.size))])
