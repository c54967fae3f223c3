"""Training that evaluates and saves between its steps, without anybody telling: replayed in a first and a second run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from evaluated_runs import LENGTHS, Loop, evaluated_training
from histories import MIB
from stalloc_accel.config import StallocConfig
from stalloc_accel.replay import ReplayFigures, replay


SMALL_SEGMENTS = 4 * MIB  # of torch's allocator, for what is small and foretold by nothing


def two_runs(core, folder: Path) -> list[ReplayFigures]:
    config = StallocConfig(cache_dir=str(folder), log_level="error", handover="none")
    return [replay(core, "stalloc", config=config, name="evaluated") for _ in range(2)]


@pytest.mark.parametrize("boundary", ["end", "optimizer"])
@pytest.mark.parametrize("is_sharded", [True, False])
def test_an_evaluation_of_any_length_is_served_as_the_forward_pass_that_it_is(boundary, is_sharded, tmp_path):
    loop = Loop(boundary=boundary, is_sharded=is_sharded, lengths=LENGTHS)
    _, second = two_runs(evaluated_training(loop, np.random.default_rng(3)), tmp_path)
    assert second.summary["state"] == "active"
    assert second.summary["hit_rate"] > 0.95, "the evaluation, and the step that begins anew behind it"


@pytest.mark.parametrize("boundary", ["end", "optimizer"])
@pytest.mark.parametrize("is_sharded", [True, False])
@pytest.mark.parametrize("rows", [2, 8])
def test_evaluations_and_saves_cost_no_memory_where_the_steps_arena_has_room_for_them(boundary, is_sharded, rows, tmp_path):
    peaks = []
    for after in ((4, 9), ()):
        loop = Loop(boundary=boundary, is_sharded=is_sharded, evaluation_rows=rows, evaluate_after=after, save_after=after)
        folder = tmp_path / str(len(after))
        folder.mkdir()
        _, second = two_runs(evaluated_training(loop, np.random.default_rng(3)), folder)
        assert second.summary["state"] == "active"
        peaks.append(second.peaks())
    evaluated, plain = peaks
    assert evaluated.allocated_bytes <= plain.allocated_bytes
    assert evaluated.reserved_bytes <= plain.reserved_bytes + SMALL_SEGMENTS


@pytest.mark.parametrize("lengths", [(512,), LENGTHS])
def test_little_that_an_evaluation_leaves_for_ever_takes_the_place_of_nothing_large(lengths, tmp_path):
    loop = Loop(boundary="optimizer", lengths=lengths, leaves_behind=4096)
    _, second = two_runs(evaluated_training(loop, np.random.default_rng(3)), tmp_path)
    last = second.peaks(loop.evaluate_after[-1] + 2)
    assert second.summary["state"] == "active"
    assert last.reserved_bytes <= 1.02 * last.allocated_bytes
