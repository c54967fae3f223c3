"""The session's ways out: whatever goes wrong with us, training goes on with the losses it would have had."""

import json
import os
import subprocess
import sys
import textwrap

import pytest

PROGRAM = """
import json, sys, torch
from stalloc_accel import Session, StallocConfig, _core
kind = sys.argv[1]
torch.manual_seed(0)
torch.use_deterministic_algorithms(True)

def model_of(width):
    return torch.nn.Sequential(torch.nn.Linear(64, width), torch.nn.ReLU(), torch.nn.Linear(width, 64))

if kind == "planner":
    def broken(*args, **kwargs): raise MemoryError("the planner ran out of memory")
    _core.build_plan = broken
losses = []
with Session(StallocConfig(backend="cpu", enabled=kind != "without")) as session:
    model = model_of(128)
    session.attach(model)
    optimizer = torch.optim.AdamW(model.parameters())
    if kind == "engine" and session._engine is not None:
        class Broken:
            def __getattr__(self, name):
                if name == "end_step": raise RuntimeError("the engine is broken")
                return getattr(engine, name)
        engine, session._engine = session._engine, Broken()
    for step in range(24):
        if step == 10 and (kind == "changes" or "changes" in sys.argv[2:]):
            model = model_of(512)
            optimizer = torch.optim.AdamW(model.parameters())
        if step == 8 and kind == "pass_through":
            session.pass_through()
        loss = model(torch.randn(32, 64)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item().hex())
        session.step()
    print(json.dumps({"losses": losses, "state": session.state.value, "reason": session.reason, **session.figures()}))
"""


@pytest.fixture
def run(tmp_path):
    def run_kind(kind: str, *more: str, **environ: str) -> dict:
        environment = {**os.environ, "STALLOC_CACHE_DIR": str(tmp_path / "plans"), **environ}
        done = subprocess.run([sys.executable, "-c", textwrap.dedent(PROGRAM), kind, *more], env=environment,
                              capture_output=True, text=True, timeout=180)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1]) | {"log": done.stderr}
    return run_kind


def test_an_exception_in_the_planner_leaves_the_run_as_it_was(run):
    ours = run("planner")
    assert ours["state"] == "passive"
    assert "the planner ran out of memory" in ours["reason"]
    assert ours["losses"] == run("without")["losses"]


def test_an_error_of_the_engine_is_told_once_and_leaves_the_run_as_it_was(run):
    ours = run("engine")
    assert ours["state"] == "passive"
    assert ours["log"].count("the engine is broken") <= 2  # the warning, and the closing table's title
    assert ours["losses"] == run("without")["losses"]


def test_a_model_that_changes_between_steps_is_served_or_left_alone_and_never_wrong(run):
    ours = run("changes")
    assert ours["activated_at_step"] is not None
    assert ours["losses"] == run("without", "changes")["losses"]
    assert sum(ours["fallbacks"].values()) > 0


def test_pass_through_can_be_asked_for_at_any_time(run):
    ours = run("pass_through")
    assert (ours["state"], ours["reason"]) == ("passive", "asked for")
    assert ours["losses"] == run("without")["losses"]


def test_the_second_run_starts_with_the_plan_of_the_first(run):
    first, second = run("plain"), run("plain")
    assert (first["state"], first["from_cache"]) == ("active", False)
    assert first["activated_at_step"] < 6
    assert (second["state"], second["from_cache"], second["activated_at_step"]) == ("active", True, 0)
    assert second["hit_rate"] >= 0.99
    assert first["losses"] == second["losses"] == run("without")["losses"]


def test_the_plan_of_another_rank_is_not_looked_at(run):
    ours, theirs = run("plain"), run("plain", RANK="1", LOCAL_RANK="1", WORLD_SIZE="2")
    assert (theirs["state"], theirs["from_cache"]) == ("active", False) and "Profiling anew" not in theirs["log"]
    assert ours["key"] != theirs["key"] and ours["losses"] == theirs["losses"]
