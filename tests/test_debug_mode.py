"""STALLOC_DEBUG: misuse of memory is reported where it happens, and a correct program is left alone."""

import os
import subprocess
import sys
import textwrap

import pytest

from programs import Runner, construction, training_step
from stalloc_accel import _core
from test_engine import LIMIT, recorded_run, run_with

PREPARED = """
import ctypes, sys
sys.path[:0] = {tests!r}
from programs import training_step
from stalloc_accel import _core
from test_engine import recorded_run
host = _core.HostEngine(1 << 30)
host.engine.set_debug({debug})
host.engine.arm(_core.build_plan(recorded_run(training_step(1)), True), 0)
host.free(host.allocate(512))
block = host.allocate(70_000)
assert host.owns(block)
"""


def child(program: str, debug: bool = True) -> subprocess.CompletedProcess:
    prepared = PREPARED.format(tests=[os.path.dirname(__file__)], debug=debug)
    return subprocess.run([sys.executable, "-c", prepared + textwrap.dedent(program)], capture_output=True, text=True, timeout=60)


MISUSES = {
    "was written past its end": "ctypes.memset(block + 70_000, 1, 1); host.free(block)",
    "a freed block was written to": "host.free(block); ctypes.memset(block, 1, 4); host.engine.deactivate()\n"
                                   "while host.owns(host.allocate(65_536)): pass",
    "a free of no block": "host.free(block); host.free(block)",
}


@pytest.mark.parametrize("report", MISUSES)
def test_misuse_ends_the_process_with_one_sentence_and_passes_unseen_without_the_mode(report):
    seen = child(MISUSES[report])
    assert seen.returncode == -6  # abort()
    [line] = [line for line in seen.stderr.splitlines() if line.startswith("stalloc: debug: ")]
    assert report in line and "address=" in line
    assert child(MISUSES[report], debug=False).returncode == 0


def test_what_a_freed_block_held_is_no_number_any_more():
    program = """
    ctypes.memset(block, 0, 70_000)
    host.free(block)
    values = (ctypes.c_float * 100).from_address(block)
    assert all(value != value for value in values)
    """
    assert child(program).returncode == 0, child(program).stderr


@pytest.mark.parametrize("num_streams", [1, 2])
def test_a_correct_program_runs_through(num_streams, seed):
    step, first = training_step(seed, num_streams=num_streams), construction()
    plan = _core.build_plan(recorded_run(step, prologue=first, num_streams=num_streams), True)
    host = _core.HostEngine(LIMIT)
    host.engine.set_debug(True)
    host, runner = run_with(plan, step, num_steps=6, prologue=first, num_streams=num_streams, host=host)
    assert host.engine.stats()["slot_hits"] > 0
    runner.free_all()
    runner.run(training_step(seed + 1, num_layers=5))
    runner.free_all()
    host.engine.deactivate()
    host.engine.trim()
    assert host.upstream_bytes() == 0


def test_a_block_that_waits_for_a_stream_is_looked_at_when_it_comes_back(seed):
    step = training_step(seed, num_streams=2)
    host = _core.HostEngine(LIMIT)
    host.engine.set_debug(True)
    host.engine.arm(_core.build_plan(recorded_run(step, num_streams=2), True), 0)
    runner = Runner(host)
    for stream in (0, 1):
        host.free(host.allocate(512, stream))
    for _ in range(4):
        block = host.allocate(4096, 0)
        host.record_stream(block, 1)
        host.free(block)
        runner.run(step)
        host.finish_stream(1)
        host.engine.end_step()
    runner.free_all()
    host.engine.poll_fences()
    assert host.engine.stats()["awaiting_bytes"] == 0


TRAINING = """
import torch
from stalloc_accel import Session, StallocConfig
torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Sequential(*[torch.nn.Linear(64, 4096), torch.nn.Linear(4096, 64)])
optimizer = torch.optim.AdamW(model.parameters())
with Session(StallocConfig(backend="cpu", log_level="error", cache="off")) as session:
    session.attach(model)
    for step in range(8):
        loss = model(torch.ones(128, 64) * step).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        session.step()
        print(loss.item())
    assert session.figures()["slot_hits"] > 0
"""


def test_the_environment_switches_it_on_and_losses_stay_the_same():
    losses = [subprocess.run([sys.executable, "-c", TRAINING], capture_output=True, text=True, check=True, timeout=120,
                             env={**os.environ, "STALLOC_DEBUG": value}).stdout for value in ("", "1")]
    assert losses[0] == losses[1] != ""


def test_a_write_through_a_dead_tensor_of_a_training_is_reported():
    program = TRAINING.replace("print(loss.item())", """
        if step == 6:
            import ctypes
            ctypes.memset(dead, 0, 8)
        dead = loss.grad_fn  # keeps nothing of the activations alive
        dead = model[0](torch.ones(128, 64)).data_ptr()""")  # 2 MiB: less would not be the arena's
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120,
                           env={**os.environ, "STALLOC_DEBUG": "1"})
    assert ended.returncode == -6, ended.stderr
    assert "a freed block was written to" in ended.stderr
