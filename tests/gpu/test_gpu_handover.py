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
    main, side, reader = torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.Stream()
    next_stream = main if case.startswith("recorded here") else side

    # One stream reads a block slowly; the block is dropped, and another one is written in its place.
    def step(sleep=0):
        source = torch.full((COUNT,), 1.0, device="cuda")
        address = source.data_ptr()
        consumer = main
        if case.startswith(("reader", "recorded")):
            consumer = reader
            reader.wait_stream(main)
        with torch.cuda.stream(consumer):
            torch.cuda._sleep(sleep)
            kept.copy_(source)
        if case.startswith("recorded"):
            source.record_stream(reader)
        alias = source if case.endswith("alias") else None
        del source
        with torch.cuda.stream(next_stream):
            other = alias.fill_(2.0) if alias is not None else torch.full((COUNT,), 2.0, device="cuda")
            is_same = other.data_ptr() == address
            del other, alias
        return is_same

    # The extent in which a side stream reads goes back to the native pool of the main one.
    def step_that_gives_back():
        with torch.cuda.stream(side):
            source = torch.full((COUNT,), 1.0, device="cuda")
            address = source.data_ptr()
            torch.cuda._sleep(SLEEP_CYCLES)
            kept.copy_(source)
            alias = source if case.endswith("alias") else None
            del source
        if alias is not None:
            alias.fill_(2.0)
            return True
        engine.deactivate()
        assert engine.trim(True) > 0
        other = torch.full((COUNT,), 2.0, device="cuda")
        return abs(other.data_ptr() - address) < 4 * COUNT

    step()
    engine.end_step()
    engine.start_recording(1 << 16)
    for _ in range(3):
        step()
        torch.cuda.synchronize()
        engine.end_step()
    plan = _core.build_plan(engine.recorded(), False, shares_spaces=True)
    engine.stop_recording()
    torch.cuda.empty_cache()  # what the recorded steps left would be taken before what goes back
    engine.set_handover(case != "off")
    if case == "reader followed":
        engine.follow_stream(reader.cuda_stream)
    if case == "reader early":  # it asked once, while nobody recorded and nobody served
        with torch.cuda.stream(reader):
            torch.empty(1, device="cuda")
    assert engine.activate(plan, 0)
    results = []
    for _ in range(1 if case.startswith("back") else 3):
        kept.zero_()
        torch.cuda.synchronize()
        is_same = step_that_gives_back() if case.startswith("back") else step(SLEEP_CYCLES)
        torch.cuda.synchronize()
        results.append([is_same, bool((kept == 1.0).all())])
        engine.end_step()
    stats = engine.stats()
    print(json.dumps({"results": results, "arena": int(plan["arena_bytes"].sum()), "waits": stats["handover_waits"],
                      "reuse_waits": stats["reuse_waits"], "unfenced": stats["fallbacks"].get("unfenced", 0)}))
"""


@pytest.fixture
def outcome(run_python):
    return lambda case: json.loads(run_python(PROGRAM, {"HANDOVER_CASE": case}).splitlines()[-1])


@pytest.mark.parametrize("case", ["alias", "recorded here alias", "recorded elsewhere alias", "back alias"])
def test_without_the_wait_the_overwriting_is_seen_so_that_the_next_tests_mean_something(outcome, case):
    assert any(not right for _, right in outcome(case)["results"])


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


@pytest.mark.parametrize("case", ["reader followed", "reader early"])
def test_a_reader_that_is_known_is_waited_for_though_it_has_no_memory_of_ours(outcome, case):
    told = outcome(case)
    assert all(is_same and right for is_same, right in told["results"])


def test_a_block_that_another_stream_was_recorded_to_read_comes_back_to_its_own_behind_that(outcome):
    told = outcome("recorded here")
    assert told["arena"] < 20 << 20, "both blocks share a place"
    assert all(is_same and right for is_same, right in told["results"])
    assert told["reuse_waits"] >= 3


def test_a_block_that_another_stream_was_recorded_to_read_goes_to_a_third_behind_both(outcome):
    told = outcome("recorded elsewhere")
    assert told["arena"] < 20 << 20, "both blocks share a place"
    assert all(is_same and right for is_same, right in told["results"])
    assert told["waits"] >= 3


def test_an_extent_goes_back_to_the_native_pool_behind_all_that_used_it(outcome):
    told = outcome("back")
    assert all(is_same and right for is_same, right in told["results"])
    assert told["waits"] >= 1
