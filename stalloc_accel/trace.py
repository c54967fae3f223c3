"""Allocation histories from files: torch snapshots, our own recordings, STAlloc's text traces."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stalloc_accel import _core
from stalloc_accel.errors import StallocError, describe
from stalloc_accel.periodicity import find_steps
from stalloc_accel.snapshot import (ALLOC, AWAITING_STREAMS, FREE, FREE_COMPLETED, FREE_REQUESTED, Device,
                                    History, Snapshot, empty_device, read_snapshot)

MAX_TEXT_BYTES = 1 << 30
_PART = 1 << 16  # events
_RECORD_STREAM = -1  # size of such an event in our own format; 0 is a free


class TraceError(StallocError):
    """A file that holds no history, or step marks that do not fit it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecordedTrace:
    """The history of one device, with what lived before it in front, and its steps."""

    name: str
    device_index: int
    history: History
    num_rebuilt: int  # events in front that stand for blocks allocated before the recording began
    step_begin: np.ndarray  # event indices; the last is the end of the last step
    steps_from: str  # "marks", "file", "periodicity" or "none"

    @property
    def num_steps(self) -> int:
        return max(len(self.step_begin) - 1, 0)

    def to_core(self) -> Any:
        """A _core.ReplayTrace. Raises TraceError."""
        history = self.history
        try:
            return _core.ReplayTrace(history.action, history.address, history.size, history.stream, self.step_begin)
        except ValueError as error:
            raise TraceError(str(error)) from None


def read_traces(path: str | os.PathLike[str], marks: str | os.PathLike[str] | None = None) -> list[RecordedTrace]:
    """The devices of a file that have a history. `marks` names a JSON list of event indices where steps begin.

    Raises TraceError, SnapshotError or OSError.
    """
    path = Path(path)
    traces = _read_any(path)
    if marks is not None:
        if len(traces) != 1:
            raise TraceError(describe("reading step marks", "devices", len(traces), "marks name events of one device",
                                      "Leave --marks out."))
        traces = [_with_marks(traces[0], _read_marks(Path(marks)))]
    return [trace if trace.steps_from != "none" else _with_found_steps(trace) for trace in traces]


def read_devices(path: str | os.PathLike[str]) -> tuple[list[tuple[Device, RecordedTrace | None]], Snapshot | None]:
    """As read_traces, with each device's state, and devices that have nothing else; the snapshot knows the stacks."""
    path = Path(path)
    if not _is_snapshot(_head(path)):
        trace = read_traces(path)[0]
        return [(empty_device(trace.history), trace)], None
    snapshot = read_snapshot(path)
    if not snapshot.devices:
        raise TraceError(describe("reading a snapshot", "devices", 0, "nothing was allocated when it was made",
                                  "Make it while the memory is in use."))
    return [(device, _with_found_steps(trace_of(device, path.name)) if len(device.history) else None)
            for device in snapshot.devices], snapshot


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        head = file.read(16)
    if not head:
        raise TraceError(describe("reading a trace", "file", path.name, "it is empty", "Record it anew."))
    return head


def _is_snapshot(head: bytes) -> bool:
    return head[:2] == b"\x1f\x8b" or head[:1] == b"\x80"


def _read_any(path: Path) -> list[RecordedTrace]:
    head = _head(path)
    if _is_snapshot(head):
        return _from_snapshot(path)
    if head[8:9] == b"{":
        return [_from_safetensors(path)]
    if head[:1] in b"01IiLl#\n " or head.isascii():
        return [_from_text(path)]
    raise TraceError(describe("reading a trace", "file", path.name, "it is no snapshot, recording or text trace",
                              "Give a file from torch.cuda.memory._dump_snapshot()."))


# --- torch snapshots ---

def _from_snapshot(path: Path) -> list[RecordedTrace]:
    devices = [device for device in read_snapshot(path).devices if len(device.history)]
    if not devices:
        raise TraceError(describe("reading a trace", "events", 0, "the snapshot has no history",
                                  "Call torch.cuda.memory._record_memory_history() before what is to be seen."))
    return [trace_of(device, path.name) for device in devices]


def trace_of(device: Device, name: str) -> RecordedTrace:
    """A device's history, completed by what must have lived when the recording began."""
    front = _blocks_before(device)
    return RecordedTrace(name=name, device_index=device.index, history=_concatenated(front, device.history),
                         num_rebuilt=len(front), step_begin=np.zeros(0, np.int64), steps_from="none")


def _blocks_before(device: Device) -> History:
    """Allocations that the recording missed: of blocks it saw freed, and of blocks alive at its end."""
    history = device.history
    known: set[int] = set()  # addresses whose present owner the recording saw, or which are rebuilt already
    rebuilt: list[tuple[int, int, int, int]] = []  # address, size, stream, stack
    requested: list[tuple[int, int, int, int]] = []  # of these, asked back before the recording began
    awaiting: set[int] = set()
    for action, address, size, stream, stack in _plain_rows(history):
        if action == ALLOC:
            known.add(address)
            continue
        if address not in known and address not in awaiting:
            rebuilt.append((address, size, stream, stack))
            if action == FREE_COMPLETED:
                requested.append(rebuilt[-1])
        known.discard(address)
        if action == FREE_REQUESTED:
            awaiting.add(address)
        else:
            awaiting.discard(address)
    blocks = device.blocks
    for address, size, state, segment, stack in zip(
            blocks.address.tolist(), blocks.requested.tolist(), blocks.state.tolist(), blocks.segment.tolist(),
            blocks.stack.tolist()):
        if state != FREE and address not in known and address not in awaiting:
            rebuilt.append((address, size, int(device.segments.stream[segment]), stack))
            if state == AWAITING_STREAMS:
                requested.append(rebuilt[-1])
    rebuilt.sort()
    return _rows([(ALLOC, *row) for row in rebuilt] + [(FREE_REQUESTED, *row) for row in requested])


def _plain_rows(history: History) -> Iterator[tuple[int, int, int, int, int]]:
    """Action, address, size, stream and stack of the events that move blocks; in parts, for Python's numbers are large."""
    columns = (history.action, history.address, history.size, history.stream, history.stack)
    for first in range(0, len(history), _PART):
        part = slice(first, first + _PART)
        kept = history.action[part] <= FREE_COMPLETED
        yield from zip(*(column[part][kept].tolist() for column in columns))


def _rows(rows: Sequence[tuple[int, int, int, int, int]]) -> History:
    action, address, size, stream, stack = zip(*rows) if rows else ((),) * 5
    return History(action=np.array(action, np.uint8), address=np.array(address, np.uint64),
                   size=np.array(size, np.int64), stream=np.array(stream, np.uint64),
                   time_us=np.full(len(rows), -1, np.int64), stack=np.array(stack, np.int32))


def _concatenated(first: History, second: History) -> History:
    return History(**{field.name: np.concatenate([getattr(first, field.name), getattr(second, field.name)])
                      for field in dataclasses.fields(History)})


# --- our own recordings ---

def replay_trace(recorded: Mapping[str, Any]) -> Any:
    """What Engine.recorded() returned, as a _core.ReplayTrace; uses by other streams are left out."""
    history, new_index = _events_from_recording(recorded["event_address"], recorded["event_size"], recorded["event_role"])
    return _core.ReplayTrace(history.action, history.address, history.size, history.stream, new_index[recorded["step_begin"]])


def write_trace(path: str | os.PathLike[str], trace: Mapping[str, Any]) -> None:
    """Keeps what Engine.recorded() returned, as safetensors. Raises OSError."""
    from safetensors.numpy import save_file
    arrays = {name: np.ascontiguousarray(trace[name])
              for name in ("event_address", "event_size", "event_role", "step_begin")}
    save_file(arrays, os.fspath(path), {"format": "stalloc-trace", "num_roles": str(int(trace["num_roles"]))})


def _from_safetensors(path: Path) -> RecordedTrace:
    from safetensors import SafetensorError, safe_open
    try:
        with safe_open(os.fspath(path), "np") as file:
            arrays = {name: file.get_tensor(name) for name in file.keys()}
    except SafetensorError as error:
        raise TraceError(describe("reading a trace", "file", path.name, f"no safetensors file ({error})",
                                  "Copy it anew.")) from None
    try:
        address, size, role = (arrays[f"event_{name}"] for name in ("address", "size", "role"))
        step_begin = arrays["step_begin"].astype(np.int64)
        if not (address.ndim == size.ndim == role.ndim == step_begin.ndim == 1
                and len(address) == len(size) == len(role)):
            raise ValueError("the columns differ in length")
    except (KeyError, ValueError) as error:
        raise TraceError(describe("reading a trace", "file", path.name, f"not a recording of ours ({error})",
                                  "Give a file of ours.")) from None
    history, new_index = _events_from_recording(address, size, role)
    step_begin = step_begin[(step_begin >= 0) & (step_begin <= len(address))]
    return RecordedTrace(name=path.name, device_index=0, history=history, num_rebuilt=0,
                         step_begin=new_index[step_begin], steps_from="file" if len(step_begin) > 1 else "none")


def _events_from_recording(address: np.ndarray, size: np.ndarray, role: np.ndarray) -> tuple[History, np.ndarray]:
    """A free becomes the pair of its request and its completion; also returns where each event went."""
    kept = size != _RECORD_STREAM
    width = np.where(size == 0, 2, 1) * kept
    new_index = np.concatenate([[0], np.cumsum(width)]).astype(np.int64)
    action = np.where(size == 0, FREE_REQUESTED, ALLOC).astype(np.uint8)
    source = np.repeat(np.arange(len(size)), width)
    action = action[source]
    second = np.zeros(len(source), bool)
    second[1:] = source[1:] == source[:-1]
    action[second] = FREE_COMPLETED
    return History(action=action, address=address[source].astype(np.uint64), size=np.maximum(size[source], 0),
                   stream=role[source].astype(np.uint64), time_us=np.full(len(source), -1, np.int64),
                   stack=np.full(len(source), -1, np.int32)), new_index


# --- STAlloc's text traces ---

def _from_text(path: Path) -> RecordedTrace:
    """Lines `1 POINTER BYTES STREAM` (allocation) and `0 ...` (free); `Iteration Index : N` begins a step."""
    if path.stat().st_size > MAX_TEXT_BYTES:
        raise TraceError(describe("reading a text trace", "bytes", path.stat().st_size,
                                  f"more than {MAX_TEXT_BYTES} are not read", "Record fewer steps."))
    rows: list[tuple[int, int, int, int, int]] = []
    steps: list[int] = []
    with path.open(encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, 1):
            if line[:2] in ("1 ", "0 "):
                _append_row(rows, line, number, path.name)
            elif "Iteration Index" in line:
                steps.append(len(rows))
            elif not rows and number > 1000:
                break
    if not rows:
        raise TraceError(describe("reading a trace", "file", path.name, "it is no snapshot, recording or text trace",
                                  "Give a file from torch.cuda.memory._dump_snapshot()."))
    steps = sorted({step for step in steps if step > 0} | ({len(rows)} if steps else set()))
    return RecordedTrace(name=path.name, device_index=0, history=_rows(rows), num_rebuilt=0,
                         step_begin=np.array(steps, np.int64), steps_from="file" if len(steps) > 1 else "none")


def _append_row(rows: list[tuple[int, int, int, int, int]], line: str, number: int, name: str) -> None:
    try:
        kind, pointer, size, stream = line.split()
        address, num_bytes, handle = int(pointer, 0), int(size), int(stream, 0)
        if not (0 <= address < 1 << 58 and 0 <= num_bytes <= 1 << 50 and 0 <= handle < 1 << 63):
            raise ValueError
    except ValueError:
        raise TraceError(describe("reading a text trace", f"line {number} of {name}", line.strip(),
                                  "must read `1 POINTER BYTES STREAM` or `0 ...`", "Record it anew.")) from None
    if kind == "1":
        rows.append((ALLOC, address, num_bytes, handle, -1))
    else:
        rows.append((FREE_REQUESTED, address, num_bytes, handle, -1))
        rows.append((FREE_COMPLETED, address, num_bytes, handle, -1))


# --- steps ---

def _read_marks(path: Path) -> np.ndarray:
    try:
        marks = json.loads(path.read_text())
        if not (isinstance(marks, list) and all(type(mark) is int for mark in marks)):
            raise ValueError("not a list of integers")
        return np.array(marks, np.int64)
    except (ValueError, OverflowError, RecursionError) as error:
        raise TraceError(describe("reading step marks", "file", path.name, f"must be a JSON list of event indices ({error})",
                                  "Leave --marks out, then the steps are found.")) from None


def _with_marks(trace: RecordedTrace, marks: np.ndarray) -> RecordedTrace:
    recorded = len(trace.history) - trace.num_rebuilt
    if len(marks) < 2 or (np.diff(marks) <= 0).any() or marks[0] < 0 or marks[-1] > recorded:
        raise TraceError(describe("reading step marks", "marks", marks[:4].tolist(),
                                  f"must be at least two increasing event indices up to {recorded}",
                                  "Leave --marks out, then the steps are found."))
    return dataclasses.replace(trace, step_begin=marks + trace.num_rebuilt, steps_from="marks")


def _with_found_steps(trace: RecordedTrace) -> RecordedTrace:
    step_begin = find_steps(trace.history)
    if len(step_begin) < 2:
        return trace
    return dataclasses.replace(trace, step_begin=step_begin, steps_from="periodicity")
