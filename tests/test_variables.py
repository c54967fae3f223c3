"""Batches of other lengths than those a plan was made from: what a step's variables are worth in it."""

from __future__ import annotations

import numpy as np

from histories import History
from stalloc_accel import _core
from stalloc_accel.config import StallocConfig
from stalloc_accel.replay import replay

KIB = 1 << 10
MIB = 1 << 20


class Recording:
    """Writes down a trace, event by event."""

    def __init__(self) -> None:
        self.events: list[tuple[int, int]] = []  # address, size
        self.step_begin = [0]
        self._next = 0

    def allocate(self, size: int) -> int:
        self._next += 1 << 32
        self.events.append((self._next, size))
        return self._next

    def free(self, *addresses: int) -> None:
        self.events += [(address, 0) for address in addresses]

    def micro_step(self, length: int, extra: tuple[int, ...] = ()) -> None:
        """A batch, requests that only this step makes, then activations that follow the batch's length."""
        batch = self.allocate(8 * length)
        self.free(*[self.allocate(size) for size in extra])
        layers = [self.allocate(KIB * length * (1 + layer % 3)) for layer in range(24)]
        logits = self.allocate(64 * KIB * length)
        self.free(logits, *reversed(layers), batch)

    def end_step(self) -> None:
        self.step_begin.append(len(self.events))

    def trace(self) -> dict:
        addresses, sizes = zip(*self.events, strict=True)
        return {"event_address": np.array(addresses, np.uint64), "event_size": np.array(sizes, np.int64),
                "event_role": np.zeros(len(sizes), np.int32), "step_begin": np.array(self.step_begin, np.int64),
                "num_roles": 1}


def test_what_only_the_first_step_asks_for_is_not_mistaken_for_its_batch():
    recording = Recording()
    recording.free(recording.allocate(7 * MIB))
    recording.micro_step(700, extra=(5704, 8 * 611, 8 * 617))
    recording.end_step()
    for length in (900, 650, 800, 1000):
        recording.micro_step(length)
        recording.end_step()
    plan = _core.build_plan(recording.trace(), True)
    # One set of slots serves the first step too: a second one beside it would double the logits.
    one_step = 8 * 1000 + KIB * 1000 * 48 + 64 * KIB * 1000
    assert one_step <= plan["arena_bytes"].sum() < 1.1 * one_step


def test_micro_steps_are_planned_for_the_longest_batch_that_any_of_them_met():
    recording = Recording()
    for first, second in ((500, 900), (600, 700), (550, 800), (640, 850)):
        recording.micro_step(first)
        recording.micro_step(second)
        recording.end_step()
    plan = _core.build_plan(recording.trace(), False)
    assert sorted(plan["variable_bytes"].tolist()) == [8 * 900, 8 * 900]


class Run:
    """Steps like Recording.micro_step on an engine that serves their plan."""

    NUM_REQUESTS = 26

    def __init__(self, lengths: tuple[int, ...] = (500, 600, 550, 640), limit: int = 1 << 30) -> None:
        recording = Recording()
        for length in lengths:
            recording.micro_step(length)
            recording.end_step()
        self.plan = _core.build_plan(recording.trace(), False)
        self.host = _core.HostEngine(limit)
        self.engine = self.host.engine
        self.engine.arm(self.plan, 0)

    def begin(self, length: int) -> list[int]:
        live = [self.host.allocate(8 * length), *[self.host.allocate(KIB * length * (1 + layer % 3)) for layer in range(24)]]
        return [*live, self.host.allocate(64 * KIB * length)]

    def step(self, length: int) -> int:
        """Requests served from their slots."""
        before = self.engine.stats()["slot_hits"]
        live = self.begin(length)
        for address in live[:0:-1] + live[:1]:
            self.host.free(address)
        self.engine.end_step()
        return self.engine.stats()["slot_hits"] - before

    def extents(self) -> list[int]:
        return sorted({(b["extent"], b["extent_size"]) for b in self.engine.blocks()})


def test_a_longer_step_is_served_from_slots_that_are_placed_for_it_at_once():
    run = Run()
    assert run.step(600) == run.NUM_REQUESTS
    assert run.step(900) == run.NUM_REQUESTS
    assert run.engine.planned_variable_bytes() == [8 * 900]
    assert run.step(640) == run.NUM_REQUESTS
    ((_, size),) = run.extents()  # the first extent was idle and has gone back
    assert run.host.upstream_bytes() == size
    assert run.engine.plan()["arena_bytes"].sum() <= size < run.engine.plan()["arena_bytes"].sum() + 4 * MIB


def test_what_lives_in_the_arena_keeps_its_extent_when_a_longer_step_comes():
    run = Run()
    run.step(600)
    kept = run.host.allocate(300 * KIB)  # a request beside the plan, served from a gap or upstream
    run.begin(600)
    (first, _), = run.extents()
    run.engine.end_step()
    run.step(900)  # a whole step lives: not quiet, so the places stay
    assert run.engine.planned_variable_bytes() == [8 * 640]
    assert (first in [base for base, _ in run.extents()]) and run.engine.stats()["bad_frees"] == 0
    run.host.free(kept)


def _overlapping(allocate, free, first: int, second: int) -> None:
    """Two micro-steps; what the first one made lives until the end of the second."""
    live = []
    for length, num_layers in ((first, 36), (second, 12)):
        live.append(allocate(8 * length))
        live += [allocate(KIB * length * (1 + layer % 3)) for layer in range(num_layers)]
        free(allocate(16 * KIB * length))
    for address in reversed(live):
        free(address)


def test_a_step_that_is_well_under_way_is_served_as_it_is_and_the_next_one_begins_with_new_places():
    recording = Recording()
    for first, second in ((500, 600), (600, 500), (550, 640), (640, 560)):
        _overlapping(recording.allocate, recording.free, first, second)
        recording.end_step()
    host = _core.HostEngine(1 << 30)
    host.engine.arm(_core.build_plan(recording.trace(), False), 0)
    for first, second, planned in ((600, 600, (640, 640)), (600, 900, (640, 640)), (600, 600, (640, 900))):
        _overlapping(host.allocate, host.free, first, second)
        assert host.engine.planned_variable_bytes() == [8 * length for length in planned]
        host.engine.end_step()


def test_what_lives_on_while_batches_come_lies_in_an_extent_of_its_own():
    """So that the room for a longer batch needs none beside the room for the shorter ones."""
    def step(allocate, free, lengths):
        gradients = []
        for length in lengths:
            layers = [allocate(8 * length), *[allocate(KIB * length * (1 + layer % 3)) for layer in range(24)]]
            gradients += [allocate(MIB + 512 * layer) for layer in range(48)]
            for address in reversed(layers):
                free(address)
        for address in gradients:
            free(address)

    recording = Recording()
    for lengths in ((500, 600), (600, 500), (550, 640), (640, 560)):
        step(recording.allocate, recording.free, lengths)
        recording.end_step()
    host = _core.HostEngine(1 << 30)
    host.engine.arm(_core.build_plan(recording.trace(), False), 0)
    for lengths in ((600, 600), (640, 1800), (1000, 900)):
        before = host.engine.stats()["slot_hits"]
        step(host.allocate, host.free, lengths)
        host.engine.end_step()
        assert host.engine.stats()["slot_hits"] - before == 2 * (25 + 48)
    longest = 8 * 1800 + KIB * 1800 * 48 + 2 * 48 * MIB
    assert host.upstream_bytes() < longest + 8 * MIB


def test_512_bytes_that_live_on_do_not_hold_up_an_arena_that_has_to_grow():
    """They lie in an extent of their own, and the rest is exchanged as a whole: an extent beside it would part the room."""
    history, marks = History(), []
    scale = history.allocate(512)
    lengths = (5000, 6000, 5500, 6400, 6000, 9000, 6000, 8000)
    for length in lengths:
        marks.append(len(history.rows))
        history.free(scale)
        scale = history.allocate(512)
        layers = [history.allocate(8 * length), *[history.allocate(KIB * length * (1 + layer % 3)) for layer in range(80)]]
        history.free(history.allocate(64 * KIB * length), *reversed(layers))
    marks.append(len(history.rows))
    trace = history.core(tuple(marks))
    figures = replay(trace, "stalloc", config=StallocConfig(cache="off", log_level="error"))
    assert "slot_busy" not in figures.summary["fallbacks"]
    steady = figures.peaks(figures.activated_at_step)
    assert steady.allocated_bytes <= steady.reserved_bytes < steady.allocated_bytes + 8 * MIB
    assert steady.allocated_bytes > KIB * 9000 * 2 * 80


def test_gradients_that_live_when_a_longer_batch_comes_keep_their_places():
    """Where they are large beside the rest, they are not apart, and the slots of the longer batch are placed around them."""
    def step(allocate, free, lengths):
        gradients = []
        for length in lengths:
            layers = [allocate(8 * length), *[allocate(KIB * length * (1 + layer % 3)) for layer in range(24)]]
            free(allocate(64 * KIB * length))
            gradients.append(allocate(24 * MIB))
            for address in reversed(layers):
                free(address)
        for address in gradients:
            free(address)
        for _ in range(2):  # the optimizer's, larger than the gradients and a batch
            free(allocate(110 * MIB))

    recording = Recording()
    for lengths in ((500, 600), (600, 500), (550, 640), (640, 560)):
        step(recording.allocate, recording.free, lengths)
        recording.end_step()
    host = _core.HostEngine(1 << 30)
    host.engine.arm(_core.build_plan(recording.trace(), False), 0)
    for lengths in ((600, 600), (640, 900), (640, 900)):
        step(host.allocate, host.free, lengths)
        host.engine.end_step()
    assert host.engine.planned_variable_bytes() == [8 * 640, 8 * 900]
    fallbacks = host.engine.stats()["fallbacks"]
    assert fallbacks["slot_busy"] == 0, fallbacks


def test_a_longer_batch_between_steps_lets_the_plan_grow_only_where_nobody_says_that_it_is_no_step():
    for is_certain in (False, True):
        run = Run()
        run.step(600)
        run.engine.begin_phase(is_certain)
        batch = run.host.allocate(8 * 900)
        layer = run.host.allocate(KIB * 900)
        run.host.free(layer)
        run.host.free(batch)
        run.engine.end_phase()
        assert run.engine.planned_variable_bytes() == [8 * (640 if is_certain else 900)]
        assert run.step(900) == run.NUM_REQUESTS, "a step of that length is a reason to grow"
        assert run.engine.planned_variable_bytes() == [8 * 900]


def test_the_plan_does_not_grow_beyond_the_arena_limit():
    run = Run()
    run.engine.set_arena_limit(int(run.plan["arena_bytes"].sum()) + MIB)
    assert run.step(900) < run.NUM_REQUESTS
    assert run.engine.planned_variable_bytes() == [8 * 640]
    assert run.step(640) == run.NUM_REQUESTS


def test_where_there_is_no_room_to_grow_the_upstream_serves_and_nothing_is_lost():
    step_of_900 = 8 * 900 + KIB * 900 * 48 + 64 * KIB * 900
    run = Run(limit=step_of_900 + 64 * KIB)  # for the requests, not for an extent of them all
    assert run.step(600) == run.NUM_REQUESTS
    assert run.step(900) == 0
    assert run.host.upstream_bytes() == 0 and run.engine.stats()["extent_bytes"] == 0
    assert run.engine.stats()["fallbacks"]["no_extent"] > 0


def test_a_request_of_no_weight_that_grows_each_step_moves_no_slot():
    recording = Recording()
    for marker in range(4):
        recording.free(recording.allocate(100_000 + 512 * marker))
        recording.micro_step((500, 600, 550, 640)[marker])
        recording.end_step()
    plan = _core.build_plan(recording.trace(), False)
    assert len(plan["variable_bytes"]) == 2
    host = _core.HostEngine(1 << 30)
    host.engine.arm(plan, 0)
    host.free(host.allocate(100_000 + 512 * 9))
    assert host.engine.planned_variable_bytes() == plan["variable_bytes"].tolist()
    host.allocate(8 * 700)
    assert sorted(host.engine.planned_variable_bytes())[0] == 8 * 700


def test_the_store_gets_a_plan_for_the_longest_step_even_if_that_was_the_last(tmp_path):
    history, marks = History(), []
    for length in (500, 600, 550, 640, 580, 610, 900):
        marks.append(len(history.rows))
        batch = history.allocate(8 * length)
        layers = [history.allocate(KIB * length * (1 + layer % 3)) for layer in range(24)]
        for block in (*reversed(layers), batch):
            history.free(block)
    marks.append(len(history.rows))
    trace = history.core(tuple(marks))
    config = StallocConfig(cache_dir=str(tmp_path), log_level="error")
    first = replay(trace, "stalloc", config=config, name="last is longest")
    assert first.activated_at_step is not None
    second = replay(trace, "stalloc", config=config, name="last is longest")
    assert second.activated_at_step == 0
    assert second.summary["fallbacks"].get("too_long", 0) == 0
    assert second.plan["variable_bytes"].tolist() == [8 * 900]


class KeepingLoop:
    """Steps whose loop keeps something, as a loss with what hangs on it, until the step after the next has begun."""

    def __init__(self, allocate, free, kept_bytes: int) -> None:
        """`kept_bytes`: for each token of the batch."""
        self.allocate, self.free, self.kept_bytes = allocate, free, kept_bytes
        self.kept: list[int] = []

    def step(self, length: int) -> int:
        """Requests made."""
        if len(self.kept) == 2:
            self.free(self.kept.pop(0))
        batch = self.allocate(8 * length)
        layers = [self.allocate(KIB * length * (1 + layer % 3)) for layer in range(12)]
        self.kept.append(self.allocate(self.kept_bytes * length))
        layers += [self.allocate(KIB * length * (1 + layer % 3)) for layer in range(12)]
        for address in [*reversed(layers), batch]:
            self.free(address)
        return 26


def _hits_of_a_keeping_loop(kept_bytes: int) -> list[int]:
    """Requests of each step that their slots did not serve."""
    recording = Recording()
    loop = KeepingLoop(recording.allocate, recording.free, kept_bytes)
    for length in (600, 900, 550, 700):
        loop.step(length)
        recording.end_step()
    host = _core.HostEngine(1 << 30)
    host.engine.arm(_core.build_plan(recording.trace(), False), 0)
    loop = KeepingLoop(host.allocate, host.free, kept_bytes)
    missed = []
    for length in (800, 650, 900, 500, 620, 777):
        before = host.engine.stats()["slot_hits"]
        requests = loop.step(length)
        host.engine.end_step()
        missed.append(requests - (host.engine.stats()["slot_hits"] - before))
    return missed


def test_what_a_loop_keeps_over_two_boundaries_has_slots_of_its_own():
    assert _hits_of_a_keeping_loop(4 * KIB) == [0] * 6


def test_a_small_request_without_a_slot_costs_no_other_one_its_slot():
    assert _hits_of_a_keeping_loop(64) == [1] * 6


def test_a_small_request_follows_the_variable_that_foretells_it_to_the_byte():
    def step(allocate, free, length):
        live = [allocate(64 * length), allocate(16 * length + 16)]  # two variables, near each other after rounding
        live += [allocate(size * length) for size in (12, 16, 20, 24, 16, 40, 28) for _ in range(8)]
        live.append(allocate(64 * KIB * length))
        free(*reversed(live))
        return len(live)

    recording = Recording()
    for length in (48, 24):  # two lengths: an affine size may follow anything
        step(recording.allocate, recording.free, length)
        recording.end_step()
    host = _core.HostEngine(1 << 30)
    host.engine.arm(_core.build_plan(recording.trace(), False), 0)
    for length in (32, 40, 28, 48):
        before = host.engine.stats()["slot_hits"]
        requests = step(host.allocate, lambda *addresses: [host.free(address) for address in addresses], length)
        host.engine.end_step()
        assert host.engine.stats()["slot_hits"] - before == requests, length


def test_micro_steps_that_differ_by_a_few_requests_share_their_longest_batch():
    recording = Recording()
    for first, second in ((500, 900), (600, 700), (550, 800), (640, 850)):
        recording.micro_step(first)
        recording.micro_step(second)
        recording.free(*[recording.allocate(KIB * second * (1 + layer)) for layer in range(2)])
        recording.end_step()
    plan = _core.build_plan(recording.trace(), False)
    assert sorted(plan["variable_bytes"].tolist()) == [8 * 900, 8 * 900]


def _accumulating(recording, first: int, second: int) -> None:
    """Each micro-step begins with a by-product that follows its length, but not to the byte."""
    for length in (first, second):
        recording.micro_step(length)
        recording.free(recording.allocate(9 * KIB * length + 512 * (length % 31)))


def test_a_longer_batch_says_nothing_of_the_batches_of_other_micro_steps():
    recording = Recording()
    for first, second in ((500, 1600), (600, 1500), (550, 1550), (640, 1400)):
        _accumulating(recording, first, second)
        recording.end_step()
    plan = _core.build_plan(recording.trace(), False)
    host = _core.HostEngine(1 << 30)
    host.engine.arm(plan, 0)

    class Served(Recording):
        def allocate(self, size: int) -> int:
            return host.allocate(size)

        def free(self, *addresses: int) -> None:
            for address in addresses:
                host.free(address)

    before = int(plan["arena_bytes"].sum())
    for first, second in ((900, 600), (1590, 500), (700, 1600)):  # each longer than any first one that was recorded
        _accumulating(Served(), first, second)
        host.engine.end_step()
    assert host.engine.stats()["fallbacks"]["too_long"] == 0
    assert int(host.engine.plan()["arena_bytes"].sum()) == before


def test_a_first_batch_whose_sizes_are_those_of_weights_is_not_mistaken():
    def micro_step(recording, length, is_first):
        batch = recording.allocate(8 * length)
        recording.free(*[recording.allocate(size) for size in (512, 8, 4 * length) * (8 if is_first else 1)])
        layers = []
        for width in (1, 2, 4) * 8:
            layers.append(recording.allocate(KIB * width * length))
            recording.free(recording.allocate(KIB * 2 * width * length))
        for layer in reversed(layers):
            recording.free(recording.allocate(MIB), recording.allocate(2 * MIB), recording.allocate(4 * MIB), layer)
        recording.free(batch)

    recording = Recording()
    for step, lengths in enumerate(((1024, 600), (500, 900), (700, 800), (640, 850))):
        for number, length in enumerate(lengths):
            micro_step(recording, length, is_first=step == number == 0)
        recording.end_step()
    trace = recording.trace()
    plan = _core.build_plan(trace, True)
    assert _core.agreement(plan, 0, trace, 0) == 1.0
