"""Batches of other lengths than those a plan was made from: what a step's variables are worth in it."""

from __future__ import annotations

import numpy as np

from stalloc_accel import _core

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


def test_a_length_met_while_a_larger_plan_was_made_is_not_forgotten():
    recording = Recording()
    for length in (500, 600, 550, 640):
        recording.micro_step(length)
        recording.end_step()
    plan = _core.build_plan(recording.trace(), False)
    host = _core.HostEngine(1 << 30)
    host.engine.arm(plan, 0)

    def run_step(length):
        before = host.engine.stats()["slot_hits"]
        live = [host.allocate(8 * length), *[host.allocate(KIB * length * (1 + layer % 3)) for layer in range(24)]]
        live.append(host.allocate(64 * KIB * length))
        for address in live[:0:-1] + live[:1]:
            host.free(address)
        host.engine.end_step()
        return host.engine.stats()["slot_hits"] - before

    assert run_step(600) == 26
    run_step(700)
    larger = _core.resized(plan, host.engine.variable_bytes(), 1.0, host.engine.extent_ends())
    run_step(900)
    assert host.engine.grow(larger)
    assert run_step(700) == 26
    assert host.engine.variable_bytes() == [8 * 900]


def test_growing_wastes_nothing_at_the_end_of_the_extent_there_is():
    recording = Recording()
    for length in (512, 640, 576, 704):
        recording.micro_step(length)
        constant = [recording.allocate(64 * MIB), recording.allocate(64 * MIB)]
        recording.free(*constant)
        recording.end_step()
    plan = _core.build_plan(recording.trace(), False)
    assert plan["arena_bytes"].sum() == 128 * MIB
    host = _core.HostEngine(1 << 30)
    host.engine.arm(plan, 0)
    host.free(host.allocate(8 * 704))
    longer = _core.resized(plan, [8 * 768], 1.0, host.engine.extent_ends())
    assert longer["arena_bytes"].sum() <= host.upstream_bytes()  # the long batch fits below what is always there
