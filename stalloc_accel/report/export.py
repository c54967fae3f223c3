"""Writes a history as a snapshot that pytorch.org/memory_viz reads."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

from stalloc_accel.snapshot import Device, History, Snapshot

_ACTIONS = ("alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "segment_map", "segment_unmap",
            "oom", "snapshot")
_STATES = ("inactive", "active_allocated", "active_pending_free")


def export_snapshot(path: Path, device: Device, history: History, snapshot: Snapshot | None) -> None:
    """`history`: the device's, with what was rebuilt. Plain dicts and lists only, so that any unpickler takes it."""
    frames = [] if snapshot is None else [{"filename": filename, "line": line, "name": name}
                                          for filename, line, name in snapshot.frames]
    stacks: dict[int, list[dict[str, Any]]] = {-1: []}

    def stack(index: int) -> list[dict[str, Any]]:
        if index not in stacks:
            first, last = snapshot.stack_begin[index], snapshot.stack_begin[index + 1]
            stacks[index] = [frames[frame] for frame in snapshot.stack_frames[first:last]]
        return stacks[index]

    content = {"segments": _segments(device, stack),
               "device_traces": [[] for _ in range(device.index)] + [_events(history, stack)],
               "allocator_settings": {}, "external_annotations": []}
    with path.open("wb") as file:
        pickle.dump(content, file, protocol=4)


def _events(history: History, stack: Any) -> list[dict[str, Any]]:
    events = []
    for action, address, size, stream, time_us, index in zip(
            history.action.tolist(), history.address.tolist(), history.size.tolist(), history.stream.tolist(),
            history.time_us.tolist(), history.stack.tolist()):
        if action >= len(_ACTIONS):
            continue
        place = "device_free" if _ACTIONS[action] == "oom" else "addr"
        events.append({"action": _ACTIONS[action], place: address, "size": size, "stream": stream,
                       "time_us": max(time_us, 0), "frames": stack(index)})
    return events


def _segments(device: Device, stack: Any) -> list[dict[str, Any]]:
    segments, blocks = device.segments, device.blocks
    of_segment: list[list[dict[str, Any]]] = [[] for _ in range(len(segments.address))]
    for segment, address, size, requested, state, index in zip(
            blocks.segment.tolist(), blocks.address.tolist(), blocks.size.tolist(), blocks.requested.tolist(),
            blocks.state.tolist(), blocks.stack.tolist()):
        of_segment[segment].append({"address": address, "size": size, "requested_size": requested,
                                    "state": _STATES[state], "frames": stack(index)})
    return [_segment(device, i, of_segment[i]) for i in range(len(segments.address))]


def _segment(device: Device, i: int, blocks: list[dict[str, Any]]) -> dict[str, Any]:
    segments = device.segments
    allocated = [block for block in blocks if block["state"] == "active_allocated"]
    active = [block for block in blocks if block["state"] != "inactive"]
    pool = segments.pool[i].split(".")
    return {"device": device.index, "address": int(segments.address[i]), "total_size": int(segments.size[i]),
            "allocated_size": sum(block["size"] for block in allocated),
            "active_size": sum(block["size"] for block in active),
            "requested_size": sum(block["requested_size"] for block in allocated),
            "stream": int(segments.stream[i]), "segment_type": "small" if segments.is_small[i] else "large",
            "segment_pool_id": tuple(int(part) if part.isdigit() else 0 for part in pool),
            "is_expandable": bool(segments.is_expandable[i]), "frames": [], "blocks": blocks}
