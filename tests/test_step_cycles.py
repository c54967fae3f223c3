"""Steps of several kinds that come in turn: each is served from the table of its kind."""

import numpy as np
import pytest

from programs import Free, Request, Runner, construction, served_share, training_step
from stalloc_accel import _core
from stalloc_accel.plan_job import awaits_more_steps

LIMIT = 1 << 30


def step_of(kind: int, every: int) -> list:
    """Every step fetches a batch that the next one frees; each `every`-th also makes a log before it fetches one."""
    log = [Request("log", 512), Request("mean", 4096), Free("log"), Free("mean")] if kind % every == 0 else []
    batch = [Request("next", 512), Free("batch"), Request("batch", 512), Free("next")]
    return [*log, *batch, *training_step(3)]


def run(runner: Runner, steps: range, every: int) -> None:
    for index in steps:
        runner.run(step_of(index, every))
        runner.host.engine.end_step()


def recorded(num_steps: int, every: int) -> dict:
    host = _core.HostEngine(LIMIT)
    host.engine.start_recording(1 << 16)
    runner = Runner(host)
    runner.run(construction())
    run(runner, range(num_steps), every)
    trace = host.engine.recorded()
    runner.free_all()
    return trace


@pytest.mark.parametrize(("every", "num_steps"), [(2, 5), (2, 6), (3, 7), (4, 11)])
def test_the_second_run_serves_each_kind_from_its_own_table(every, num_steps):
    plan = _core.build_plan(recorded(num_steps, every), True)
    assert plan["num_period"] % every == 0
    host = _core.HostEngine(LIMIT)
    host.engine.arm(plan, 0)
    runner = Runner(host)
    runner.run(construction())
    run(runner, range(num_steps), every)
    before = host.engine.stats()
    run(runner, range(num_steps, num_steps + 2 * every), every)
    assert served_share(host, before) == 1.0


@pytest.mark.parametrize("begun_at", [6, 7, 8])
def test_a_run_under_way_enters_the_plan_at_its_own_kind(begun_at):
    trace = recorded(7, 3)
    lasting = _core.build_plan(trace, True)
    plan = _core.without_prologue(lasting)
    host = _core.HostEngine(LIMIT)
    runner = Runner(host)
    run(runner, range(begun_at), 3)
    host.engine.arm(plan, (begun_at - lasting["num_prologue"]) % plan["num_period"])
    run(runner, range(begun_at, begun_at + 3), 3)  # what lives from before the plan is gone after these
    before = host.engine.stats()
    run(runner, range(begun_at + 3, begun_at + 12), 3)
    assert served_share(host, before) == 1.0


def test_steps_of_one_kind_make_no_cycle():
    assert _core.build_plan(recorded(9, 1), True)["num_period"] <= 2


@pytest.mark.parametrize(("counts", "awaits"), [((9, 5, 5), False), ((9, 5, 6), True), ((9, 5, 6, 5), True),
                                                ((9, 5, 6, 7), False), ((9, 5, 6, 5, 6), False)])
def test_two_kinds_are_waited_for_and_nothing_else(counts, awaits):
    trace = {"event_size": np.ones(sum(counts), np.int64), "step_begin": np.concatenate([[0], np.cumsum(counts)])}
    assert awaits_more_steps(trace, 1) is awaits


def evaluation(num_batches: int, like: list) -> list:
    """Forward passes alone: what a training step begins with, freed at once. Batches of another size lie between."""
    forward = [part for part in like[:len(like) // 2] if isinstance(part, Request)]
    program = []
    for batch in range(num_batches):
        scale = 1 if batch % 2 else 3
        for part in forward:
            name = f"eval {part.name}"
            program += [Request(name, scale * part.size), Free(name)]
    return program


@pytest.mark.parametrize("is_told", [True, False])
def test_the_step_after_an_evaluation_is_served_from_its_slots(is_told):
    step = training_step(5, num_layers=60)
    host = _core.HostEngine(LIMIT)
    host.engine.start_recording(1 << 16)
    runner = Runner(host)
    for _ in range(3):
        runner.run(step)
        host.engine.end_step()
    host.engine.arm(_core.build_plan(host.engine.recorded(), False), 0)
    runner.run(step)
    host.engine.end_step()
    reserved = host.upstream_bytes()
    runner.run(evaluation(5, step))
    if is_told:
        host.engine.end_phase()
    before = host.engine.stats()
    runner.run(step)
    host.engine.end_step()
    # Untold, the first requests are what tells that a step begins.
    assert served_share(host, before) >= (1.0 if is_told else 0.7)
    assert host.upstream_bytes() <= reserved, "the evaluation and the step found room in the arena"


@pytest.mark.parametrize("phase_at", range(5))
def test_an_evaluation_between_recorded_steps_leaves_no_trace(phase_at):
    host = _core.HostEngine(LIMIT)
    host.engine.start_recording(1 << 16)
    runner = Runner(host)
    for index in range(7):
        if index >= 2 and index % 5 == phase_at:
            runner.run([Request("log", 512), Free("log")])
            host.engine.begin_phase()
            runner.run([Request(f"kept{index}", 2048), *evaluation(2, training_step(3))])
            host.engine.end_phase()
        else:
            runner.run([Request("log", 512), Free("log")])
        runner.run(step_of(index, 2))
        host.engine.end_step()
    trace = host.engine.recorded()
    births = np.concatenate([[0], np.cumsum(trace["event_size"] > 0)])[trace["step_begin"]]
    with_log = np.diff(births)[2::2] - [index % 5 == phase_at for index in range(2, 7, 2)]
    assert len(set(with_log)) == 1, "but for what the phase left behind, steps of a kind ask for the same"
    assert (trace["event_size"] == 2048).sum() == sum(index % 5 == phase_at for index in range(2, 7))
