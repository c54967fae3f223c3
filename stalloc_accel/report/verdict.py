"""What a history says about its memory, in plain words."""

from __future__ import annotations

import dataclasses
from typing import Any

FRAGMENTATION = "fragmentation"
OUT_OF_MEMORY = "really out of memory"
OTHER_STREAM_OR_POOL = "cache of another stream/pool"
DELAYED_FREES = "delayed frees (record_stream)"

_NEGLIGIBLE = 0.05  # of the reserved bytes


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shares:
    """Where the reserved bytes are at the moment that is judged. Their sum is `reserved`."""

    reserved: int
    live: int
    delayed: int  # asked back, but a recorded stream had not finished
    stranded: int  # free, in segments of the request's own stream and pool in which something lives
    cached: int  # whole free segments of the request's own stream and pool
    elsewhere_stranded: int  # free, in segments of other streams and pools in which something lives
    elsewhere_cached: int  # whole free segments of other streams and pools

    @property
    def elsewhere(self) -> int:
        return self.elsewhere_stranded + self.elsewhere_cached

    @property
    def free(self) -> int:
        return self.stranded + self.cached + self.elsewhere

    def to_json(self) -> dict[str, int]:
        return {f"{field.name}_bytes": getattr(self, field.name) for field in dataclasses.fields(self)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Costs:
    """What each cause adds to the reserved peak: reserved = needed + their sum."""

    needed: int  # most bytes in use at once
    fragmentation: int  # above what a perfect placement takes, stream by stream
    streams_apart: int  # because a range stays with its stream or pool
    delayed: int  # because blocks come back late that record_stream named

    def to_json(self) -> dict[str, int]:
        return {f"{field.name}_bytes": getattr(self, field.name) for field in dataclasses.fields(self)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class FailedRequest:
    """An out-of-memory event."""

    event: int
    size: int
    device_free: int  # what the driver still had
    stream: int


def judge_failure(shares: Shares, failed: FailedRequest) -> tuple[str, str]:
    """The verdict on an out-of-memory event, and a sentence that explains it."""
    asked = gib(failed.size)
    left = failed.device_free + shares.free + shares.delayed
    if failed.size > left:
        return OUT_OF_MEMORY, (f"{asked} were asked for, and even without any fragmentation only {gib(left)} were left: "
                               f"{gib(shares.live)} are in use.")
    parts = {FRAGMENTATION: shares.stranded + shares.cached, OTHER_STREAM_OR_POOL: shares.elsewhere,
             DELAYED_FREES: shares.delayed}
    verdict = max(parts, key=lambda name: parts[name])
    return verdict, (f"{asked} were asked for and the device had {gib(failed.device_free)} left, but of the "
                     f"{gib(shares.reserved)} reserved only {gib(shares.live)} are in use. {_told(verdict, shares)}")


def judge_run(reserved_peak: int, costs: Costs) -> tuple[str, str]:
    """The verdict on a history that met no out-of-memory error: what takes most of the reserved peak in vain."""
    parts = {FRAGMENTATION: costs.fragmentation, OTHER_STREAM_OR_POOL: costs.streams_apart, DELAYED_FREES: costs.delayed}
    lost = sum(parts.values())
    if lost <= _NEGLIGIBLE * reserved_peak:
        return OUT_OF_MEMORY, (f"The memory is really in use: {gib(costs.needed)} of the {gib(reserved_peak)} reserved at the "
                               "peak. Where this does not fit, nothing but less memory in use will help.")
    verdict = max(parts, key=lambda name: parts[name])
    return verdict, (f"{gib(reserved_peak)} were reserved for {gib(costs.needed)} in use at the peak. Of the difference, "
                     f"fragmentation is {gib(costs.fragmentation)}, keeping streams apart {gib(costs.streams_apart)}, and "
                     f"frees delayed by record_stream {gib(costs.delayed)}.")


def judge_state(shares: Shares) -> tuple[str, str]:
    """The verdict on a moment, where there is no history."""
    lost = shares.free + shares.delayed
    if lost <= _NEGLIGIBLE * shares.reserved:
        return OUT_OF_MEMORY, f"The memory is really in use: {gib(shares.live)} of the {gib(shares.reserved)} reserved."
    parts = {FRAGMENTATION: shares.stranded + shares.cached, OTHER_STREAM_OR_POOL: shares.elsewhere,
             DELAYED_FREES: shares.delayed}
    verdict = max(parts, key=lambda name: parts[name])
    return verdict, f"{gib(lost)} of the {gib(shares.reserved)} reserved are not in use. {_told(verdict, shares)}"


def _told(verdict: str, shares: Shares) -> str:
    if verdict == FRAGMENTATION:
        return (f"{gib(shares.stranded)} are holes between live blocks, {gib(shares.cached)} are free segments that did not "
                "fit what was asked for.")
    if verdict == OTHER_STREAM_OR_POOL:
        return f"{gib(shares.elsewhere)} are cached for other streams or pools, which do not share."
    return f"{gib(shares.delayed)} were freed but wait for a stream that record_stream named."


@dataclasses.dataclass(frozen=True, kw_only=True)
class Advice:
    action: str
    saves_bytes: int
    text: str

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def gib(num_bytes: int) -> str:
    return f"{num_bytes / 2**30:.2f} GiB" if abs(num_bytes) >= 2**28 else f"{num_bytes / 2**20:.1f} MiB"
