"""One thing fails, at every seam: the run goes on with the losses it would have had, or ends with the error it would
have had; nothing hangs. Faults of the store are in test_plan_store, of the build in test_extension."""

import functools
import json
import os
import subprocess
import sys

import pytest

from recipes.processes import free_port

PROGRAM = """
import json, os, signal, sys, threading, time, torch
from stalloc_accel import Session, StallocConfig, _core, plan_job
fault, enabled = sys.argv[1], sys.argv[2] == "1"
torch.manual_seed(0)
torch.set_num_threads(1)

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell that starts us in the background lets it be ignored

class Stop(Exception):
    pass

class Failing(torch.autograd.Function):
    step = -1
    @staticmethod
    def forward(ctx, x):
        return x.clone()
    @staticmethod
    def backward(ctx, gradient):
        if Failing.step == 12:
            raise Stop("the model's own mistake")
        return gradient.clone()

def interrupt_when(name, owner):
    method = getattr(owner, name)
    def interrupted(*args):
        setattr(owner, name, method)
        result = method(*args)
        signal.raise_signal(signal.SIGINT)
        return result
    setattr(owner, name, interrupted)

class Wrapped:  # the engine's class takes no attributes
    def __init__(self, engine):
        self.engine = engine
    def __getattr__(self, name):
        return self.__dict__.get(name) or getattr(self.engine, name)

if fault == "planner hangs":
    plan_job.JOIN_TIMEOUT_S = 1.0
    _core.build_plan = lambda *args, **kwargs: time.sleep(1000)
losses, caught, num_signals = [], [], 0
def count_signal(*args):
    global num_signals
    num_signals += 1
if fault == "signals":
    signal.signal(signal.SIGALRM, count_signal)
    signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)

def train(steps, session, model, optimizer):
    for step in steps:
        Failing.step = step
        try:
            hidden = Failing.apply(model[0](torch.randn(32, 64)))
            if fault == "memory" and step == 12:
                torch.empty(1 << 50, dtype=torch.uint8)
            if fault == "interrupt" and step == 12:
                signal.raise_signal(signal.SIGINT)
            loss = model[1:](hidden).square().mean()
            if fault != "backward" and step == 12:
                Failing.step = -1
            loss.backward()
        except (Stop, KeyboardInterrupt, RuntimeError) as error:
            caught.append(f"{type(error).__name__}: {error}")
            optimizer.zero_grad()
            continue
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item().hex())
        try:
            session.step()
        except KeyboardInterrupt:
            caught.append("in our step")

config = StallocConfig(backend="cpu", enabled=enabled, profile_steps=2, cache_dir=os.environ.get("CACHE"))
with Session(config) as session:
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 64))
    session.attach(model)
    optimizer = torch.optim.AdamW(model.parameters())
    if fault == "signal during activation" and enabled:
        session._engine = session._activation._engine = Wrapped(session._engine)
        interrupt_when("arm", session._engine)
    if fault == "fork":
        for at in (2, 4, 14):  # while it records, while it plans, while it serves
            train(range(at - 2, at), session, model, optimizer)
            child = os.fork()
            if child == 0:
                train(range(20, 23), session, model, optimizer)
                sys.exit(0)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    if fault == "exit while it plans":
        train(range(4), session, model, optimizer)
        kept = [torch.ones(1000) for _ in range(10)]
        print(json.dumps({"losses": losses}))
        sys.exit(7)
    train(range(24), session, model, optimizer)
    kept = [torch.ones(1000) for _ in range(10)]  # alive when the interpreter ends
    print(json.dumps({"losses": losses, "caught": caught, "signals": num_signals, "state": session.state.value,
                      "reason": session.reason, "figures": session.figures()}))
    if fault == "exit":
        raise SystemExit(5)
signal.setitimer(signal.ITIMER_REAL, 0)  # Python takes its handlers away before it ends
"""


def ended(fault: str, enabled: bool, **environ: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-c", PROGRAM, fault, str(int(enabled))], capture_output=True, text=True,
                          timeout=180, env={**os.environ, **environ})


OURS_ALONE = ("planner hangs", "signal during activation", "signals")
"""Faults that a run without us does not notice."""


@functools.cache
def without_us(fault: str) -> dict:
    if fault in OURS_ALONE:
        return without_us("none")
    done = ended(fault, False)
    return {**json.loads(done.stdout), "code": done.returncode}


def run(fault: str, **environ: str) -> dict:
    """Our run, whose losses, exceptions and exit status are those of the run without us."""
    done = ended(fault, True, **environ)
    assert done.stdout, done.stderr
    ours, native = json.loads(done.stdout), without_us(fault)
    assert ours["losses"] == native["losses"] and len(ours["losses"]) >= 4
    assert done.returncode == native["code"], done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return {**ours, "native": native, "log": done.stderr}


def was_served(ours: dict) -> bool:
    return ours["state"] == "active" and ours["figures"]["slot_hits"] > 0


def test_a_planner_that_hangs_holds_up_neither_the_steps_nor_the_exit():
    ours = run("planner hangs")
    assert ours["state"] == "planning" and ours["figures"]["slot_hits"] == 0


@pytest.mark.parametrize("fault, name", [("backward", "Stop"), ("interrupt", "KeyboardInterrupt"), ("memory", "RuntimeError")])
def test_an_exception_within_a_step_reaches_the_program_and_the_next_steps_are_served(fault, name):
    ours = run(fault)
    assert ours["caught"] == ours["native"]["caught"]
    assert [text.split(":")[0] for text in ours["caught"]] == [name]
    assert was_served(ours)


def test_an_interrupt_while_the_arena_is_taken_reaches_the_program_and_the_arena_is_taken_at_the_next_step():
    ours = run("signal during activation")
    assert ours["caught"] == ["in our step"]
    assert was_served(ours)


def test_signals_all_the_time_disturb_nothing():
    ours = run("signals")
    assert ours["signals"] > 20
    assert was_served(ours)


def test_children_that_are_forked_at_any_time_train_on_and_end():
    assert was_served(run("fork"))


@pytest.mark.parametrize("fault", ["exit", "exit while it plans"])
def test_the_exit_status_is_the_programs_own(fault):
    assert run(fault)["native"]["code"] == (5 if fault == "exit" else 7)


def test_a_store_that_cannot_be_opened_is_told_once(tmp_path):
    (tmp_path / "file").write_text("in the way")
    ours = run("none", CACHE=str(tmp_path / "file"))
    assert was_served(ours)
    assert ours["log"].count(str(tmp_path / "file")) == 1


def test_without_a_part_for_this_torch_training_stays_as_it_is(tmp_path):
    ours = run("none", STALLOC_EXTENSION_DIR=str(tmp_path / "none"), CXX="no-such-compiler")
    assert (ours["state"], ours["figures"]) == ("off", {})
    assert ours["log"].count("no-such-compiler") == 1


def test_a_part_that_was_built_for_another_torch_is_told_and_left_alone(tmp_path, monkeypatch):
    from stalloc_accel import extension
    monkeypatch.setenv("STALLOC_EXTENSION_DIR", str(tmp_path))
    library = extension.plan_build("cpu").library
    library.parent.mkdir(mode=0o700, parents=True)
    source = tmp_path / "other.cpp"
    source.write_text('extern "C" void* of_another_torch();\n'
                      'extern "C" void* PyInit__torch_cpu() { return of_another_torch(); }')
    subprocess.run(["g++", "-shared", "-fPIC", "-Wl,-z,now", str(source), "-o", str(library)], check=True)
    ours = run("none", STALLOC_EXTENSION_DIR=str(tmp_path))
    assert (ours["state"], ours["figures"]) == ("off", {})
    assert ours["log"].count("of_another_torch") == 1


RANK = """
import os, sys, torch, torch.distributed as dist
from stalloc_accel import Session, StallocConfig
torch.manual_seed(0)
dist.init_process_group("gloo")
with Session(StallocConfig(backend="cpu", enabled=sys.argv[1] == "1", cache="off")) as session:
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.Linear(128, 64))
    model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(20):
        if step == 14 and dist.get_rank() == 1:
            os._exit(9)
        try:
            model(torch.randn(32, 64)).square().mean().backward()
        except RuntimeError as error:
            print(step, type(error).__name__, session.state.value)
            raise SystemExit(3)
        optimizer.step()
        optimizer.zero_grad()
        session.step()
"""


def test_a_rank_that_is_lost_ends_the_others_with_the_error_they_would_have_had():
    answers = []
    for enabled in ("0", "1"):
        shared = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2",
                  "OMP_NUM_THREADS": "1"}
        ranks = [subprocess.Popen([sys.executable, "-c", RANK, enabled], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                  text=True, env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)})
                 for rank in range(2)]
        outputs = [rank.communicate(timeout=180) for rank in ranks]
        assert [rank.returncode for rank in ranks] == [3, 9], outputs
        answers.append(outputs[0][0].split())
    assert answers[0][:2] == answers[1][:2] and answers[0][0] == "14"
    assert answers[1][2] == "active"
