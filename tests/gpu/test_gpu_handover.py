"""Memory goes to another stream only behind the work of all streams that used it. Each in a process of its own: roles are
streams by first appearance, and the engine knows every stream that a process has used."""

from __future__ import annotations

import json

import pytest

PROGRAM = """
    import json, os, torch
    from stalloc_accel import _core, extension

    case = os.environ["HANDOVER_CASE"]
    COUNT, SLEEP_CYCLES = 4 << 20, 400_000_000  # a fifth of a second or so
    kept = torch.zeros(COUNT, device="cuda")  # before us, so that it is no part of the plan
    module = extension.load("cuda")
    module.install()
    engine = module.engine(0)
    side, reader = torch.cuda.Stream(), torch.cuda.Stream()

    def step(sleep=0):
        source = torch.full((COUNT,), 1.0, device="cuda")
        address = source.data_ptr()
        consumer = torch.cuda.current_stream()
        if case.startswith("reader"):  # it neither allocates nor is recorded
            consumer = reader
            reader.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(consumer):
            torch.cuda._sleep(sleep)
            kept.copy_(source)
        alias = source if case == "alias" else None
        del source
        with torch.cuda.stream(side):
            other = alias.fill_(2.0) if alias is not None else torch.full((COUNT,), 2.0, device="cuda")
            is_same = other.data_ptr() == address
            del other, alias
        return is_same

    step()
    engine.end_step()
    engine.start_recording(1 << 16)
    for _ in range(3):
        step()
        torch.cuda.synchronize()
        engine.end_step()
    plan = _core.build_plan(engine.recorded(), False, shares_spaces=True)
    engine.stop_recording()
    engine.set_handover(case != "off")
    if case == "reader followed":
        engine.follow_stream(reader.cuda_stream)
    assert engine.activate(plan, 0)
    results = []
    for _ in range(3):
        kept.zero_()
        torch.cuda.synchronize()
        is_same = step(SLEEP_CYCLES)
        torch.cuda.synchronize()
        results.append([is_same, bool((kept == 1.0).all())])
        engine.end_step()
    stats = engine.stats()
    print(json.dumps({"results": results, "arena": int(plan["arena_bytes"].sum()), "waits": stats["handover_waits"],
                      "unfenced": stats["fallbacks"].get("unfenced", 0)}))
"""


@pytest.fixture
def outcome(run_python):
    return lambda case: json.loads(run_python(PROGRAM, {"HANDOVER_CASE": case}).splitlines()[-1])


def test_without_the_wait_the_overwriting_is_seen_so_that_the_next_test_means_something(outcome):
    assert any(not right for _, right in outcome("alias")["results"])


def test_a_stream_that_takes_memory_over_waits_for_its_last_user(outcome):
    told = outcome("own")
    assert told["arena"] < 20 << 20, "both blocks share a place"
    assert all(is_same for is_same, _ in told["results"])
    assert all(right for _, right in told["results"])
    assert told["waits"] >= 3


def test_without_leave_each_stream_keeps_its_own_memory(outcome):
    told = outcome("off")
    assert not any(is_same for is_same, _ in told["results"])
    assert all(right for _, right in told["results"])
    assert told["waits"] == 0 and told["unfenced"] >= 3


def test_a_reader_that_nobody_told_of_is_overtaken_so_that_the_next_test_means_something(outcome):
    assert any(not right for _, right in outcome("reader unknown")["results"])


def test_a_followed_reader_is_waited_for_though_it_allocates_nothing(outcome):
    told = outcome("reader followed")
    assert all(is_same and right for is_same, right in told["results"])
