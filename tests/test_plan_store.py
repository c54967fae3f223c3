"""The plan store: found again, bounded, private; every fault is told once and never raised into a run."""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import stat
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from stored_plans import are_equal, key_of, plan_of

from stalloc_accel import plan_store
from stalloc_accel.cache_directory import LOCK_NAME
from stalloc_accel.cli.main import main
from stalloc_accel.fingerprint import make_key
from stalloc_accel.plan_file import FORMAT_VERSION
from stalloc_accel.plan_store import PlanStore

PLAN = plan_of()
KEY = key_of()
LAUNCH = make_key({"launch.arguments": ["--x"], "version.torch": "2.13.0", "device.backend": "cpu"})
HERE = Path(__file__).parent


@pytest.fixture
def path(tmp_path):
    return tmp_path / "plans"


@pytest.fixture
def store(path):
    return PlanStore(path)


def file_of(store: PlanStore, key=KEY) -> Path:
    return store.path / f"{key.digest}.plan.safetensors"


def warnings_of(caplog) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


def run_python(code: str, *arguments: object, **options) -> subprocess.Popen:
    environment = {**os.environ, "PYTHONPATH": str(HERE)}
    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)]
    return subprocess.Popen(command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)


def test_a_plan_is_found_again_by_another_store(store, path):
    assert store.put(KEY, PLAN, {"seconds": 0.5})
    stored = PlanStore(path).get(KEY)
    assert are_equal(stored.plan, PLAN) and stored.key == KEY
    assert stored.facts["seconds"] == 0.5 and stored.facts["slots"] == len(PLAN["slot_size"])
    assert PlanStore(path).get(key_of(other=1)) is None


def test_a_launch_leads_to_the_plan_it_ended_up_with(store, path):
    assert store.put(KEY, PLAN, {}) and store.link(LAUNCH, KEY)
    key, stored = PlanStore(path).candidate(LAUNCH)
    assert key == KEY and are_equal(stored.plan, PLAN)
    assert PlanStore(path).candidate(make_key({"launch.arguments": ["--y"]})) is None


def test_a_candidate_of_another_torch_is_refused(store, caplog):
    other = key_of(**{"version.torch": "2.9.0"})
    store.put(other, PLAN, {})
    store.link(LAUNCH, other)
    assert store.candidate(LAUNCH) is None
    assert "version.torch='2.9.0', must be '2.13.0'" in warnings_of(caplog)[0]


def test_readonly_finds_and_keeps_nothing_and_off_does_neither(store, path):
    readonly, off = PlanStore(path, "readonly"), PlanStore(path, "off")
    assert not readonly.put(KEY, PLAN, {}) and not readonly.link(LAUNCH, KEY) and readonly.get(KEY) is None
    assert not path.exists()
    store.put(KEY, PLAN, {})
    store.link(LAUNCH, KEY)
    before = file_of(store).stat().st_mtime_ns
    assert readonly.get(KEY) is not None and readonly.candidate(LAUNCH) is not None
    assert file_of(store).stat().st_mtime_ns == before
    assert off.get(KEY) is None and off.candidate(LAUNCH) is None and not off.put(KEY, PLAN, {})


def test_directory_and_files_are_private(store, path):
    old = os.umask(0)
    try:
        store.put(KEY, PLAN, {})
        store.link(LAUNCH, KEY)
    finally:
        os.umask(old)
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in path.iterdir()} == {0o600}


@pytest.mark.parametrize("damage", [
    lambda data: b"", lambda data: data[:100], lambda data: data[:-1], lambda data: data[:-1] + bytes([data[-1] ^ 1]),
    lambda data: b"\x80\x04" + data, lambda data: os.urandom(len(data)), lambda data: b"\xff" * 4096,
])
def test_a_damaged_file_is_told_once_ignored_and_replaced(store, caplog, damage):
    store.put(KEY, PLAN, {})
    file_of(store).write_bytes(damage(file_of(store).read_bytes()))
    assert store.get(KEY) is None and store.get(KEY) is None
    (told,) = warnings_of(caplog)
    assert told.startswith(str(file_of(store))) and "\n" not in told
    assert store.put(KEY, PLAN, {}) and store.get(KEY) is not None


def test_the_file_of_another_key_under_this_name_is_ignored(store, caplog):
    other = key_of(**{"device.name": "another device"})
    store.put(other, PLAN, {})
    file_of(store, other).rename(file_of(store))
    assert store.get(KEY) is None and "must be that of its name" in warnings_of(caplog)[0]


def test_a_file_that_is_too_large_is_not_read(store, caplog):
    store.put(KEY, PLAN, {})
    with file_of(store).open("wb") as file:
        file.truncate(1 << 40)
    started = time.process_time()
    assert store.get(KEY) is None and "at most" in warnings_of(caplog)[0]
    assert time.process_time() - started < 1.0


@pytest.mark.parametrize("kind", ["link", "directory", "fifo"])
def test_what_is_no_plain_file_is_not_opened(store, tmp_path, caplog, kind):
    store.put(KEY, PLAN, {})
    target = tmp_path / "elsewhere"
    file_of(store).rename(target)
    {"link": lambda: file_of(store).symlink_to(target), "directory": lambda: file_of(store).mkdir(),
     "fifo": lambda: os.mkfifo(file_of(store))}[kind]()
    assert store.get(KEY) is None and len(warnings_of(caplog)) == 1


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 50_000, json.dumps({"format": "stalloc-launch"}), "\x00",
                                  json.dumps({"format": "stalloc-launch", "format_version": FORMAT_VERSION, "launch": {},
                                              "key": "../../etc/passwd"}),
                                  json.dumps({"format": "stalloc-launch", "format_version": FORMAT_VERSION,
                                              "launch": {"other": "launch"}, "key": KEY.digest})])
def test_a_damaged_launch_file_is_told_and_ignored(store, caplog, text):
    store.put(KEY, PLAN, {})
    store.link(LAUNCH, KEY)
    (store.path / f"{LAUNCH.digest}.launch.json").write_text(text)
    assert store.candidate(LAUNCH) is None and len(warnings_of(caplog)) == 1
    assert store.launches() == {}


def test_a_directory_that_is_a_link_is_refused(tmp_path, caplog):
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to("real")
    store = PlanStore(tmp_path / "link")
    assert not store.put(KEY, PLAN, {}) and store.get(KEY) is None
    (told,) = warnings_of(caplog)
    assert "must be a directory and no link" in told and not list((tmp_path / "real").iterdir())


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o770, 0o702])
def test_a_directory_that_others_may_write_to_is_refused(path, store, caplog, mode):
    path.mkdir()
    path.chmod(mode)
    assert not store.put(KEY, PLAN, {}) and store.get(KEY) is None
    assert len(warnings_of(caplog)) == 1 and "must not be writable for others" in warnings_of(caplog)[0]
    assert not list(path.iterdir())


@pytest.mark.skipif(os.geteuid() != 0, reason="giving a directory away needs root")
def test_a_directory_and_a_file_of_another_user_are_refused(path, store, caplog):
    store.put(KEY, PLAN, {})
    os.chown(file_of(store), 12345, 12345)
    assert store.get(KEY) is None
    os.chown(path, 12345, 12345)
    assert not store.put(KEY, PLAN, {})
    assert "plain files of this user" in warnings_of(caplog)[0] and "must belong to user 0, not 12345" in warnings_of(caplog)[1]


def test_a_file_in_the_place_of_the_directory_is_told_once(path, store, caplog):
    path.write_text("not a directory")
    assert not store.put(KEY, PLAN, {}) and not store.put(KEY, PLAN, {}) and store.get(KEY) is None
    assert len(warnings_of(caplog)) == 1 and path.read_text() == "not a directory"
    below = PlanStore(path / "below")
    assert not below.put(KEY, PLAN, {}) and below.get(KEY) is None


def test_a_directory_that_cannot_be_written_still_gives_its_plans(path, store, caplog):
    store.put(KEY, PLAN, {})
    if os.geteuid() != 0:
        path.chmod(0o500)
    elif subprocess.run(["chattr", "+i", path], capture_output=True).returncode != 0:
        pytest.skip("this file system cannot forbid root to write")
    try:
        assert store.get(KEY) is not None
        assert not store.put(key_of(other=1), PLAN, {}) and not store.put(key_of(other=2), PLAN, {})
    finally:
        if os.geteuid() != 0:
            path.chmod(0o700)
        else:
            subprocess.run(["chattr", "-i", path], check=True)
    assert len(warnings_of(caplog)) == 1 and "training goes on" in warnings_of(caplog)[0]


def test_a_full_disk_keeps_the_old_plan_and_leaves_nothing_behind(path, store):
    """A real limit of the kernel: no file of the process may grow beyond it, as on a disk that is full."""
    store.put(KEY, PLAN, {})
    before = file_of(store).read_bytes()
    process = run_python("""
        import logging, resource, sys
        from stored_plans import key_of, plan_of
        from stalloc_accel.plan_store import PlanStore
        plan = plan_of(5000)
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
        store = PlanStore(sys.argv[1])
        print(store.put(key_of(), plan, {}), store.get(key_of()) is not None)
    """, path)
    output, errors = process.communicate(timeout=120)
    assert output.split() == ["False", "True"] and errors.count("cannot be written") == 1
    assert file_of(store).read_bytes() == before
    assert {file.name for file in path.iterdir()} == {file_of(store).name, LOCK_NAME}


def test_a_full_file_system_keeps_the_old_plan(tmp_path):
    mount_point = tmp_path / "small"
    mount_point.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64k,mode=700", "tmpfs", str(mount_point)]
    if os.geteuid() != 0 or not shutil.which("mount") or subprocess.run(command, capture_output=True).returncode != 0:
        pytest.skip("needs the right to mount")
    try:
        store = PlanStore(mount_point / "plans")
        assert store.put(KEY, PLAN, {})
        assert not store.put(KEY, plan_of(5000), {}) and are_equal(store.get(KEY).plan, PLAN)
        assert not [file for file in store.path.iterdir() if file.suffix == ".tmp"]
    finally:
        subprocess.run(["umount", str(mount_point)], check=True)


def test_a_process_killed_while_it_writes_leaves_the_old_plan_whole(path, store):
    store.put(KEY, PLAN, {})
    for delay_s in (0.0, 0.002, 0.01, 0.03):
        process = run_python("""
            import sys
            from stored_plans import key_of, plan_of
            from stalloc_accel.plan_store import PlanStore
            store, plan = PlanStore(sys.argv[1]), plan_of(20_000, seed=1)
            print("writing", flush=True)
            while True:
                store.put(key_of(), plan, {})
        """, path)
        assert process.stdout.readline() == "writing\n"
        time.sleep(delay_s)
        process.send_signal(signal.SIGKILL)
        process.communicate(timeout=60)
        stored = store.get(KEY)
        assert stored is not None and len(stored.plan["slot_size"]) in (len(PLAN["slot_size"]), _slots_of_large_plan())
        # The lock died with its process.
        assert store.put(KEY, PLAN, {})


def test_a_write_killed_before_the_rename_changes_nothing(path, store):
    """Stopped at the worst moment for certain: the temporary file is whole and the rename has not happened."""
    store.put(KEY, PLAN, {})
    process = run_python("""
        import os, signal, sys
        from stored_plans import key_of, plan_of
        from stalloc_accel.plan_store import PlanStore
        os.replace = lambda *args, **options: os.kill(os.getpid(), signal.SIGKILL)
        PlanStore(sys.argv[1]).put(key_of(), plan_of(5000), {})
    """, path)
    process.communicate(timeout=120)
    assert process.returncode == -signal.SIGKILL
    (left,) = [file for file in path.iterdir() if file.suffix == ".tmp"]
    assert are_equal(store.get(KEY).plan, PLAN)
    assert store.put(KEY, PLAN, {}) and left.exists()  # it may belong to a writer that is slow
    os.utime(left, (time.time() - 7200, time.time() - 7200))
    assert store.put(KEY, PLAN, {}) and not left.exists()


def _slots_of_large_plan() -> int:
    return len(plan_of(20_000, seed=1)["slot_size"])


def test_processes_that_write_one_key_leave_one_whole_file(path, store):
    code = """
        import sys
        from stored_plans import are_equal, key_of, plan_of
        from stalloc_accel.plan_store import PlanStore
        seed = int(sys.argv[2])
        store, plans = PlanStore(sys.argv[1]), [plan_of(2000, seed) for seed in range(3)]
        for _ in range(30):
            assert store.put(key_of(), plans[seed], {})
            read = store.get(key_of())
            assert any(are_equal(read.plan, plan) for plan in plans)
    """
    processes = [run_python(code, path, seed) for seed in range(3)]
    for process in processes:
        _, errors = process.communicate(timeout=240)
        assert process.returncode == 0 and not errors, errors
    assert store.get(KEY) is not None
    assert {file.name for file in path.iterdir()} == {file_of(store).name, LOCK_NAME}


def test_a_lock_that_is_never_given_back_costs_a_timeout_and_no_run(path, store, caplog):
    store.put(KEY, PLAN, {})
    process = run_python("""
        import sys, filelock
        with filelock.FileLock(sys.argv[1]):
            print("locked", flush=True)
            sys.stdin.read()
    """, path / LOCK_NAME, stdin=subprocess.PIPE)
    assert process.stdout.readline() == "locked\n"
    try:
        hasty = PlanStore(path, lock_timeout_s=0.2)
        started = time.perf_counter()
        assert not hasty.put(KEY, PLAN, {}) and hasty.get(KEY) is not None
        assert time.perf_counter() - started < 30.0
    finally:
        process.communicate("", timeout=60)
    assert "is locked by another process" in warnings_of(caplog)[0]
    assert not [file for file in path.iterdir() if file.suffix == ".tmp"]


def test_the_least_recently_used_plans_go_first_and_the_new_one_stays(path):
    store = PlanStore(path)
    keys = [key_of(number=number) for number in range(5)]
    for age, key in enumerate(reversed(keys[:4])):
        store.put(key, PLAN, {})
        os.utime(file_of(store, key), (1000.0 + age, 1000.0 + age))  # keys[3] is the oldest, keys[0] the newest
    assert store.get(keys[3]) is not None  # used now
    size = file_of(store, keys[0]).stat().st_size
    PlanStore(path, max_bytes=int(3.5 * size)).put(keys[4], PLAN, {})
    assert {entry.digest for entry in store.entries()} == {keys[number].digest for number in (0, 3, 4)}
    PlanStore(path, max_bytes=1).put(keys[1], PLAN, {})
    assert [entry.digest for entry in store.entries()] == [keys[1].digest]


def test_the_number_of_launches_is_bounded(store, monkeypatch):
    monkeypatch.setattr(plan_store, "MAX_LINKS", 3)
    store.put(KEY, PLAN, {})
    launches = [make_key({"launch.arguments": [str(number)]}) for number in range(6)]
    for age, launch in enumerate(launches):
        store.link(launch, KEY)
        os.utime(store.path / f"{launch.digest}.launch.json", (1000.0 + age, 1000.0 + age))
    assert set(store.launches()) == {launch.digest for launch in launches[3:]}


def test_a_launch_of_enormous_arguments_is_not_noted(store, caplog):
    store.put(KEY, PLAN, {})
    assert not store.link(make_key({"launch.arguments": ["x" * (1 << 20)]}), KEY)
    assert "launch bytes" in warnings_of(caplog)[0]


def test_files_that_are_not_ours_are_left_alone(store, path):
    store.put(KEY, PLAN, {})
    (path / "notes.txt").write_text("mine")
    (path / ("Z" * 32 + ".plan.safetensors")).write_text("mine")
    assert [entry.digest for entry in store.entries()] == [KEY.digest]
    assert store.clear() == 1
    assert {file.name for file in path.iterdir()} == {"notes.txt", "Z" * 32 + ".plan.safetensors", LOCK_NAME}


def test_a_relative_directory_does_not_follow_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    store = PlanStore("plans")
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    assert store.put(KEY, PLAN, {}) and (tmp_path / "plans").is_dir()


def test_removing_a_plan_removes_the_launches_that_lead_to_it(store):
    other = key_of(other=1)
    store.put(KEY, PLAN, {})
    store.put(other, PLAN, {})
    store.link(LAUNCH, KEY)
    assert store.remove(KEY.digest) and not store.remove(KEY.digest) and not store.remove("../../etc/passwd")
    assert store.launches() == {} and store.get(other) is not None


def command(capsys, *arguments: object) -> tuple[int, str, str]:
    status = main(["cache", *map(str, arguments)])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_the_command_lists_shows_explains_removes_and_clears(store, path, capsys):
    other = key_of(**{"model.class": "tests.Other", "trainer.rank": 1, "trainer.world_size": 2})
    store.put(KEY, PLAN, {})
    store.put(other, PLAN, {})
    store.link(LAUNCH, KEY)
    status, output, _ = command(capsys, "list", "--dir", path, "--json")
    plans = {plan["key"]: plan for plan in json.loads(output)["plans"]}
    assert status == 0 and plans[KEY.digest]["launches"] == [LAUNCH.digest] and plans[other.digest]["rank"] == "1 of 2"
    assert KEY.digest[:12] in command(capsys, "list", "--dir", path)[1]
    assert "model.class = tests.Model" in command(capsys, "show", KEY.digest[:8], "--dir", path)[1]
    shown = json.loads(command(capsys, "show", KEY.digest, "--dir", path, "--json")[1])
    assert shown["fields"] == dict(KEY.fields) and shown["plan"]["slots"] == len(PLAN["slot_size"])
    explained = command(capsys, "explain", KEY.digest[:8], other.digest[:8], "--dir", path)[1]
    assert 'model.class: "tests.Model" -> "tests.Other"' in explained and "trainer.rank: (not set) -> 1" in explained
    assert "The keys are equal." in command(capsys, "explain", KEY.digest, KEY.digest, "--dir", path)[1]
    assert "launch.arguments" in command(capsys, "explain", LAUNCH.digest[:8], KEY.digest, "--dir", path)[1]
    assert command(capsys, "remove", KEY.digest[:8], "--dir", path)[0] == 0
    assert command(capsys, "clear", "--dir", path)[1].startswith("removed 1 plans")
    assert "no plans" in command(capsys, "list", "--dir", path)[1]


def test_the_command_tells_what_is_wrong_in_one_line(store, path, capsys):
    store.put(KEY, PLAN, {})
    status, _, errors = command(capsys, "show", "ffffffff", "--dir", path)
    assert status == 1 and errors.count("\n") == 1 and "must be the beginning of one key" in errors
    file_of(store).write_bytes(b"garbage")
    assert command(capsys, "show", KEY.digest, "--dir", path)[0] == 1
    status, output, _ = command(capsys, "list", "--dir", path, "--json")
    assert status == 0 and json.loads(output)["plans"][0]["problem"]
    path.chmod(0o777)
    status, _, errors = command(capsys, "list", "--dir", path)
    assert status == 1 and "must not be writable for others" in errors
    assert command(capsys, "list", "--dir", path / "nowhere")[0] == 0


def test_text_from_a_file_has_no_effect_on_the_terminal(store, path, capsys):
    store.put(key_of(**{"model.class": "tests.[red]\x1b[31m\n[/]"}), PLAN, {"note": "\x1b]0;title\x07"})
    (entry,) = store.entries()
    for arguments in (["list"], ["show", entry.digest]):
        assert "\x1b" not in command(capsys, *arguments, "--dir", path)[1]
