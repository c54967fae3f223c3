"""`stalloc replay`: policies, limits, steps, formats and exit codes."""

import json
import threading

import numpy as np
import pytest

from histories import DATA, GIB, MIB, SHARED, History, snapshot_of, training, write
from stalloc_accel import _core
from stalloc_accel.cli import replay as command
from stalloc_accel.cli.main import main
from stalloc_accel.config import StallocConfig
from stalloc_accel.periodicity import find_steps
from stalloc_accel.replay import UnsafeReuseError, least_limit, replay
from stalloc_accel.snapshot import History as Columns
from stalloc_accel.trace import TraceError, read_traces, write_trace

POLICY_KEYS = {"allocated_peak_bytes", "reserved_peak_bytes", "efficiency", "steady", "activated_at_step", "hit_rate",
               "fallbacks", "plan_seconds", "plan_over_lower_bound", "seconds"}


def quiet(**more) -> StallocConfig:
    return StallocConfig(**{"cache": "off", "log_level": "error", **more})


@pytest.fixture
def trace_file(tmp_path):
    history, marks = training(8)
    (tmp_path / "marks.json").write_text(json.dumps(marks))
    return write(tmp_path / "run.pickle", snapshot_of(history.events())), tmp_path / "marks.json"


def run_json(capsys, *arguments) -> dict:
    assert main(["replay", *map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_json_has_the_documented_keys(trace_file, capsys):
    trace, marks = trace_file
    result = run_json(capsys, trace, "--marks", marks)
    assert {"trace", "events", "steps", "policies"} <= result.keys()
    assert result["steps"] == 8
    assert list(result["policies"]) == ["native", "expandable", "stalloc"]
    for figures in result["policies"].values():
        assert POLICY_KEYS <= figures.keys()
        assert figures["efficiency"] == figures["allocated_peak_bytes"] / figures["reserved_peak_bytes"]


def test_the_second_run_finds_the_plan_of_the_first(trace_file, tmp_path, capsys):
    trace, marks = trace_file
    arguments = (trace, "--marks", marks, "--policy", "stalloc", "--store", tmp_path / "store")
    first = run_json(capsys, *arguments)["policies"]["stalloc"]
    second = run_json(capsys, *arguments)["policies"]["stalloc"]
    assert not first["from_store"]
    assert second["from_store"]
    assert second["activated_at_step"] == 0
    assert second["hit_rate"] > 0.99
    assert second["efficiency"] >= 0.98


def test_the_models_are_shown_for_the_same_steps_as_ours(trace_file, tmp_path, capsys):
    trace, marks = trace_file
    main(["replay", str(trace), "--marks", str(marks), "--store", str(tmp_path / "store"), "--policy", "stalloc"])
    capsys.readouterr()
    policies = run_json(capsys, trace, "--marks", marks, "--store", tmp_path / "store")["policies"]
    assert all(figures["steady"] is not None for figures in policies.values())


def test_the_least_limit_survives_and_two_mib_less_does_not(trace_file, capsys):
    trace, _ = trace_file
    policies = run_json(capsys, trace, "--find-limit")["policies"]
    core = read_traces(trace)[0].to_core()
    for policy in ("native", "expandable"):
        limit = policies[policy]["limit"]
        assert set(limit) == {"least_bytes", "over_allocated_peak", "flushes"}
        assert replay(core, policy, limit_bytes=limit["least_bytes"]).survived
        assert not replay(core, policy, limit_bytes=limit["least_bytes"] - 2 * MIB).survived
    assert policies["stalloc"]["limit"]["over_allocated_peak"] >= 1.0


def test_a_limit_below_what_is_asked_for_is_out_of_memory_for_every_policy(trace_file, capsys):
    trace, marks = trace_file
    result = run_json(capsys, trace, "--marks", marks, "--limit", "40MiB")
    assert [figures["survived"] for figures in result["policies"].values()] == [False, False, False]


def test_ours_dies_where_native_dies_at_the_latest():
    history, marks = training(8)
    core = history.core(tuple(marks))
    native = replay(core, "native")
    least = least_limit(lambda limit: replay(core, "native", limit_bytes=limit), native)["least_bytes"]
    assert replay(core, "stalloc", limit_bytes=least, config=quiet()).survived


def test_an_unsafe_reuse_exits_with_three(trace_file, monkeypatch, capsys):
    trace, _ = trace_file

    def unsafe(*_args, **_kwargs):
        raise UnsafeReuseError("replay stopped at an unsafe reuse: event=5, two live blocks never share a byte.")

    monkeypatch.setattr(command, "_one", unsafe)
    assert main(["replay", str(trace)]) == 3
    assert "unsafe reuse" in capsys.readouterr().err


@pytest.mark.parametrize("content", [b"", b"text of no trace\n" * 9, b"\x80\x04]."])
def test_bad_input_exits_with_two_and_one_line(tmp_path, content, capsys):
    path = tmp_path / "bad"
    path.write_bytes(content)
    assert main(["replay", str(path)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize("marks", ["{}", "[1]", "[5, 5]", "[0, 1e9]", "[3, 1]", "[-1, 4]", "[1, 99999999]", "nonsense", "[true, 4]"])
def test_bad_marks_exit_with_two(trace_file, tmp_path, marks, capsys):
    (tmp_path / "bad.json").write_text(marks)
    assert main(["replay", str(trace_file[0]), "--marks", str(tmp_path / "bad.json")]) == 2
    assert "step marks" in capsys.readouterr().err


def test_a_missing_file_exits_with_two(tmp_path, capsys):
    assert main(["replay", str(tmp_path / "nothing.pickle")]) == 2
    assert "nothing.pickle" in capsys.readouterr().err


def test_a_device_without_history_is_refused(trace_file, capsys):
    assert main(["replay", str(trace_file[0]), "--device", "5"]) == 2
    assert "device=5" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [("--limit", "much"), ("--limit", "-3"), ("--max-split-size-mb", "4"),
                                       ("--roundup-power2-divisions", "3"), ("--garbage-collection-threshold", "2")])
def test_impossible_options_are_refused_by_the_parser(trace_file, arguments):
    with pytest.raises(SystemExit) as caught:
        main(["replay", str(trace_file[0]), *arguments])
    assert caught.value.code == 2


def test_allocator_options_reach_the_models(trace_file, capsys):
    trace, _ = trace_file
    plain = run_json(capsys, trace, "--policy", "native")["policies"]["native"]
    rounded = run_json(capsys, trace, "--policy", "native", "--roundup-power2-divisions", "[64:1,>:1]")["policies"]["native"]
    coarse = run_json(capsys, trace, "--policy", "native", "--roundup-power2-divisions", "2")["policies"]["native"]
    assert rounded["allocated_peak_bytes"] == plain["allocated_peak_bytes"]
    assert coarse["allocated_peak_bytes"] > plain["allocated_peak_bytes"]


# --- formats ---

def test_a_recording_of_ours_keeps_its_steps(tmp_path):
    history, marks = training(6)
    run = _core.SimulatedRun(history.core(tuple(marks)), {})
    run.engine.start_recording(1 << 16)
    for mark in marks[1:]:
        run.advance(mark)
        run.engine.end_step()
    write_trace(tmp_path / "run.safetensors", run.engine.recorded())
    [trace] = read_traces(tmp_path / "run.safetensors")
    assert (trace.steps_from, trace.num_steps) == ("file", 6)
    direct, read = replay(history.core(tuple(marks)), "native"), replay(trace.to_core(), "native")
    assert read.peaks() == direct.peaks()


def test_a_text_trace_of_stalloc_is_read(tmp_path):
    lines = ["1 0x7f0000000000 1048576 0"]
    for iteration in range(5):
        lines += [f"Iteration Index : {iteration}", "micro-batch : F"]
        lines += [f"1 0x7f00010{i:05x} {4 * MIB} 0" for i in range(20)]
        lines += [f"0 0x7f00010{i:05x} {4 * MIB} 0" for i in range(20)]
    (tmp_path / "mem_log_dev0.txt").write_text("\n".join([*lines, "Iteration Index : end"]) + "\n")
    [trace] = read_traces(tmp_path / "mem_log_dev0.txt")
    assert (trace.steps_from, trace.num_steps) == ("file", 5)
    assert replay(trace.to_core(), "native").peaks().allocated_bytes == 81 * MIB


@pytest.mark.parametrize("line", ["1 0x10 5", "1 x 5 0", "1 0x10 -5 0", "0 0x10 5 0 7", "1 0x10 99999999999999999999 0"])
def test_a_damaged_line_of_a_text_trace_is_named(tmp_path, line):
    (tmp_path / "bad.txt").write_text("1 0x100 512 0\n" + line + "\n")
    with pytest.raises(TraceError, match="line 2 of bad.txt"):
        read_traces(tmp_path / "bad.txt")


# --- steps from the period ---

def test_steps_are_found_where_they_repeat(trace_file):
    trace, marks_file = trace_file
    marks = json.loads(marks_file.read_text())
    [found] = read_traces(trace)
    assert found.steps_from == "periodicity"
    assert np.diff(found.step_begin)[1:-1].tolist() == np.diff(marks)[1:-1].tolist()[:len(found.step_begin) - 3]


def test_no_steps_are_found_in_noise(rng):
    history = History()
    for size in rng.integers(1, GIB, 2000):
        history.free(history.allocate(int(size)))
    action, address, size, stream = (np.array(column) for column in zip(*history.rows))
    columns = Columns(action=action.astype(np.uint8), address=address.astype(np.uint64), size=size, stream=stream,
                      time_us=size, stack=size)
    assert len(find_steps(columns)) == 0


@pytest.mark.skipif(not (SHARED / "traces").exists(), reason="the recorded traces are not beside this checkout")
def test_the_period_of_recorded_traces_is_that_of_their_marks():
    for path in sorted((SHARED / "traces").glob("*_nat.pickle.gz")):
        marks = json.loads(path.with_name(path.name.replace(".pickle.gz", ".marks.json")).read_text())
        [trace] = read_traces(path)
        assert trace.num_steps >= len(marks) - 2, path.name
        assert np.median(np.diff(trace.step_begin)) == pytest.approx(np.median(np.diff(marks)), rel=0.01), path.name


# --- our engine over the models ---

def test_replay_lets_other_threads_run(tmp_path):
    [trace] = read_traces(DATA / "z3_moe_two_steps_nat.pickle.gz")
    core = trace.to_core()
    ticks = []
    done = threading.Event()

    def tick():
        while not done.wait(0.0005):
            ticks.append(1)

    thread = threading.Thread(target=tick)
    thread.start()
    for _ in range(20):
        _core.replay(core, "native", {})
    done.set()
    thread.join()
    assert len(ticks) > 10


def test_recorded_blocks_are_replayed_without_an_unsafe_reuse():
    [trace] = read_traces(DATA / "z3_moe_two_steps_nat.pickle.gz")
    figures = replay(trace.to_core(), "stalloc", config=quiet(skip_steps=0, profile_steps=1))
    assert figures.survived


def test_random_programs_are_never_served_unsafely(rng):
    for _ in range(5):
        history, marks = History(), []
        live: list[int] = []
        body = [(int(rng.integers(1, 8 * MIB)), int(rng.integers(0, 3))) for _ in range(120)]
        order = rng.permutation(120)
        for _step in range(8):
            marks.append(len(history.rows))
            live = [history.allocate(size, stream) for size, stream in body]
            for index in order:
                if rng.random() < 0.1:
                    history.request_free(live[index])
                else:
                    history.free(live[index])
            freed = {row[1] for row in history.rows if row[0] == 2}
            for address in live:
                if address not in freed:
                    history.complete_free(address)
        marks.append(len(history.rows))
        figures = replay(history.core(tuple(marks)), "stalloc", config=quiet())
        assert figures.survived


@pytest.mark.skipif(not (SHARED / "traces").exists(), reason="the recorded traces are not beside this checkout")
@pytest.mark.parametrize("name", ["dense_ckpt_nat", "z3_moe_ckpt_nat", "ds_moe_nat"])
def test_a_recorded_trace_is_served_without_an_unsafe_reuse_in_both_runs(name, tmp_path):
    directory = SHARED / "traces"
    [trace] = read_traces(directory / f"{name}.pickle.gz", directory / f"{name}.marks.json")
    core = trace.to_core()
    for _ in range(2):
        figures = replay(core, "stalloc", name=name, config=quiet(cache="readwrite", cache_dir=str(tmp_path)))
        assert figures.survived
