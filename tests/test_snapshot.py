"""Reading snapshots: every variety that torch wrote, and what only an attacker or a broken disk writes."""

import gzip
import os
import pickle
import subprocess
import sys
import time

import numpy as np
import pytest

from histories import DATA, FRAMES, MIB, SHARED, History, segment, snapshot_of, training, write
from stalloc_accel.snapshot import ALLOC, ALLOCATED, AWAITING_STREAMS, FREE, OOM, SnapshotError, read_snapshot
from stalloc_accel.trace import TraceError, read_traces


def one_device(path):
    [device] = read_snapshot(path).devices
    return device


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_every_binary_pickle_protocol_is_read(tmp_path, protocol):
    history, _ = training(2)
    device = one_device(write(tmp_path / "s.pickle", snapshot_of(history.events()), protocol))
    assert len(device.history) == len(history.rows)
    assert device.history.size.tolist() == [row[2] for row in history.rows]
    assert device.history.address.tolist() == [row[1] for row in history.rows]


@pytest.mark.parametrize("changes", [{"time_us": None}, {"frames": None}, {"time_us": None, "frames": None},
                                     {"frames": [], "compile_context": "1/0"}, {"user_metadata": "x"}])
def test_events_of_older_and_newer_torch_are_read(tmp_path, changes):
    history, _ = training(2)
    device = one_device(write(tmp_path / "s.pickle", snapshot_of(history.events(**changes), external_annotations=[{"stage": "START", "name": "x"}])))
    assert (device.history.action == ALLOC).sum() == sum(row[0] == ALLOC for row in history.rows)
    assert ("time_us" in changes) == bool((device.history.time_us == -1).all())


def test_gzip_is_unpacked(tmp_path):
    path = tmp_path / "s.pickle.gz"
    path.write_bytes(gzip.compress(pickle.dumps(snapshot_of(training(2)[0].events()))))
    assert len(one_device(path).history) > 0


def test_stacks_are_shared_and_read_innermost_first(tmp_path):
    snapshot = read_snapshot(write(tmp_path / "s.pickle", snapshot_of(training(2)[0].events())))
    assert len(snapshot.stack_begin) == 2
    assert snapshot.stack(0) == [(frame["filename"], frame["line"], frame["name"]) for frame in FRAMES]
    assert snapshot.stack(-1) == []


def test_several_devices_keep_their_events_and_segments_apart(tmp_path):
    first, second = training(2)[0].events(), training(3)[0].events()
    content = {"segments": [segment(0, 2 * MIB, [(2 * MIB, "active_allocated")], device=2)],
               "device_traces": [first, [], [], second]}
    devices = read_snapshot(write(tmp_path / "s.pickle", content)).devices
    assert [(device.index, len(device.history), len(device.segments.address)) for device in devices] == [
        (0, len(first), 0), (2, 0, 1), (3, len(second), 0)]


def test_states_and_pools_are_told_apart(tmp_path):
    content = snapshot_of([], [segment(0, 6 * MIB, [(2 * MIB, "active_allocated"), (2 * MIB, "active_pending_free"), (2 * MIB, "inactive")],
                                       segment_pool_id=(0, 7), is_expandable=True)])
    device = one_device(write(tmp_path / "s.pickle", content))
    assert device.blocks.state.tolist() == [ALLOCATED, AWAITING_STREAMS, FREE]
    assert device.segments.pool == ["0.7"]
    assert device.segments.is_expandable.tolist() == [True]


def test_blocks_without_addresses_lie_one_after_the_other(tmp_path):
    old = segment(MIB, 4 * MIB, [(MIB, "active_allocated"), (3 * MIB, "inactive")], segment_pool_id=None, is_expandable=None)
    for block in old["blocks"]:
        del block["address"], block["requested_size"], block["frames"]
        block["history"] = [{"addr": 1, "real_size": 5, "frames": FRAMES}]
    device = one_device(write(tmp_path / "s.pickle", [old]))
    assert device.blocks.address.tolist() == [MIB, 2 * MIB]
    assert device.blocks.stack.tolist() == [0, 0]


def test_an_out_of_memory_event_tells_what_the_device_had_left(tmp_path):
    events = [*training(1)[0].events(), {"action": "oom", "device_free": 123, "size": 9 * MIB, "stream": 4, "time_us": 7}]
    history = one_device(write(tmp_path / "s.pickle", snapshot_of(events))).history
    assert (history.action[-1], history.address[-1], history.size[-1], history.stream[-1]) == (OOM, 123, 9 * MIB, 4)


def test_blocks_from_before_the_recording_are_rebuilt(tmp_path):
    history = History()
    freed, waiting, kept = history.allocate(3 * MIB), history.allocate(2 * MIB), history.allocate(5 * MIB)
    del history.rows[:]
    history.free(freed)
    history.complete_free(waiting)
    history.free(history.allocate(MIB))
    state = segment(kept, 5 * MIB, [(5 * MIB, "active_allocated")])
    [trace] = read_traces(write(tmp_path / "s.pickle", snapshot_of(history.events(), [state])))
    core = trace.to_core()
    assert trace.num_rebuilt == 4  # three allocations and the request of a free
    assert core.unknown_frees == 0
    assert trace.history.address[:3].tolist() == sorted([freed, waiting, kept])


@pytest.mark.skipif(not (SHARED / "snapshots").exists(), reason="the public snapshots are not beside this checkout")
def test_public_snapshots_leave_no_free_unexplained():
    for path in sorted((SHARED / "snapshots").glob("*.pickle")):
        for trace in read_traces(path):
            assert (trace.to_core().unknown_frees, trace.to_core().double_births) == (0, 0), path.name


# --- hostile files ---

class Evil:
    def __reduce__(self):
        return os.system, ("exit 1",)


def cyclic() -> dict:
    content = snapshot_of([])
    content["device_traces"].append(content["device_traces"])
    content["self"] = content
    return content


def event(**changes) -> list[dict]:
    return [{"action": "alloc", "addr": 512, "size": 512, "stream": 0, "time_us": 1, **changes}]


HOSTILE = {
    "a global": pickle.dumps(Evil()),
    "a global inside": pickle.dumps(snapshot_of([{"action": Evil()}])),
    "a global of protocol 2": pickle.dumps(Evil(), protocol=2),
    "a known class": pickle.dumps({"segments": [], "device_traces": [np.zeros(3)]}),
    "a negative size": pickle.dumps(snapshot_of(event(size=-5))),
    "a huge size": pickle.dumps(snapshot_of(event(size=2**63))),
    "a size of a thousand digits": pickle.dumps(snapshot_of(event(size=10**1000))),
    "a text for a size": pickle.dumps(snapshot_of(event(size="big"))),
    "a float for an address": pickle.dumps(snapshot_of(event(addr=1.5))),
    "no action": pickle.dumps(snapshot_of([{"size": 4}])),
    "an event that is a list": pickle.dumps(snapshot_of([[1, 2]])),
    "a number": pickle.dumps(5),
    "a dict of something else": pickle.dumps({"a": 1}),
    "a text file": b"Traceback (most recent call last):\n" * 50,
    "an empty file": b"",
    "a truncated pickle": pickle.dumps(snapshot_of(training(2)[0].events()))[:-400],
    "a truncated gzip": gzip.compress(pickle.dumps(snapshot_of(training(2)[0].events())))[:-60],
    "a gzip of text": gzip.compress(b"hello"),
    "a gzip with a bad checksum": gzip.compress(pickle.dumps(snapshot_of(event())))[:-8] + b"\0" * 8,
    "random bytes": bytes(np.random.default_rng(7).integers(0, 256, 4096, dtype=np.uint8)),
    "a memo index out of order": b"\x80\x04}r\xff\xff\xff\x7f.",
    "a text of four gigabytes": b"\x80\x04X\xff\xff\xff\xff" + b"a" * 100,
    "a stack without end": b"\x80\x04" + b"(" * 100_000 + b".",
    "pops without pushes": b"\x80\x040000.",
    "a dict with a key alone": b"\x80\x04}(K\x01u.",
    "an item set below a mark": b"\x80\x04}](K\x01K\x01K\x01K\x01K\x01e\x94h\x00(se.",
    "a pool of many numbers": pickle.dumps(snapshot_of([], [segment(0, MIB, [], segment_pool_id=tuple(range(1000)))])),
    "one segment named two million times": pickle.dumps([segment(0, MIB, [])] * 2_000_000),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_file_is_refused_in_one_line(tmp_path, what):
    path = tmp_path / "bad.pickle"
    path.write_bytes(HOSTILE[what])
    with pytest.raises((SnapshotError, TraceError)) as caught:
        read_traces(path)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


def test_a_cyclic_structure_is_walked_once(tmp_path):
    path = write(tmp_path / "s.pickle", cyclic())
    with pytest.raises(SnapshotError):
        read_snapshot(path)


def test_a_deep_stack_that_all_events_share_is_walked_once(tmp_path):
    shared = event(frames=[FRAMES[0]] * 200_000) * 200_000
    path = write(tmp_path / "s.pickle", snapshot_of(shared))
    began = time.process_time()
    assert set(one_device(path).history.stack.tolist()) == {0}
    assert time.process_time() - began < 10


def test_depth_costs_nothing(tmp_path):
    path = tmp_path / "s.pickle"
    path.write_bytes(b"\x80\x04" + b"]" * 500_000 + b"a" * 499_999 + b".")
    with pytest.raises(SnapshotError):
        read_snapshot(path)


@pytest.mark.parametrize("damage", range(40))
def test_flipped_bytes_never_crash(tmp_path, rng, damage):
    data = bytearray(pickle.dumps(snapshot_of(training(1)[0].events(), [segment(0, MIB, [(MIB, "inactive")])])))
    for position in rng.integers(0, len(data), 3):
        data[position] ^= int(rng.integers(1, 256))
    path = tmp_path / "s.pickle"
    path.write_bytes(bytes(data))
    try:
        for trace in read_traces(path):
            trace.to_core()
    except (SnapshotError, TraceError):
        pass


def measured_read(path) -> tuple[int, float, str]:
    """Bytes that a fresh process needs beyond its imports, seconds of processor time, and what it said."""
    program = ("import resource, sys, time\n"
               "from stalloc_accel.snapshot import read_snapshot, SnapshotError\n"
               "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10\n"
               "before, began = peak(), time.process_time()\n"
               "try: said = str(sum(len(device.history) for device in read_snapshot(sys.argv[1]).devices))\n"
               "except SnapshotError as error: said = str(error)\n"
               "print(peak() - before, time.process_time() - began, said)\n")
    answer = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=True).stdout
    memory, seconds, said = answer.split(maxsplit=2)
    return int(memory), float(seconds), said


def many_events(path, count: int) -> None:
    """Like pickle.dumps of `count` events, without making them first."""
    head = pickle.dumps(snapshot_of([]), protocol=4)
    body = b"}\x94(\x8c\x06action\x8c\x05alloc\x8c\x04addrJ\x00\x10\x00\x00\x8c\x04sizeJ\x00\x02\x00\x00\x8c\x06streamK\x00\x8c\x07time_usK\x01u"
    assert head
    with path.open("wb") as file:
        file.write(b"\x80\x04}(\x8c\x08segments]\x8c\rdevice_traces](](")
        for _ in range(count // 1000):
            file.write(body * 1000)
        file.write(b"eeu.")


def test_a_large_file_takes_at_most_four_times_its_size(tmp_path):
    path = tmp_path / "large.pickle"
    many_events(path, 1_000_000)
    memory, seconds, said = measured_read(path)
    assert said.strip() == "1000000"
    assert memory < 4 * path.stat().st_size
    assert seconds < 10


def test_ten_million_events_are_refused_within_bounds(tmp_path):
    path = tmp_path / "huge.pickle"
    many_events(path, 10_000_000)
    memory, seconds, said = measured_read(path)
    assert "events=10000000" in said
    assert memory < 4 * path.stat().st_size
    assert seconds < 60


def test_a_small_file_that_unpacks_without_end_is_stopped(tmp_path):
    path = tmp_path / "bomb.pickle.gz"
    with gzip.open(path, "wb", compresslevel=9) as file:
        file.write(b"\x80\x04(")
        for _ in range(300):
            file.write(b"]" * (1 << 20))
    memory, seconds, said = measured_read(path)
    assert said.startswith("reading a snapshot")
    assert memory < 600 * MIB
    assert seconds < 30


def test_a_recorded_trace_in_the_repository_is_whole():
    [trace] = read_traces(DATA / "z3_moe_two_steps_nat.pickle.gz")
    assert trace.to_core().unknown_frees == 0
