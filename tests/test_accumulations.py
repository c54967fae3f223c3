"""Accumulation over micro-steps with batches of other lengths each: what a first and a second run need."""

from __future__ import annotations

import random

import pytest
from accumulations import Model, Training, random_lengths

from stalloc_accel.config import StallocConfig
from stalloc_accel.replay import replay


@pytest.mark.parametrize("longest", (0, 3), ids=("constructs", "comes while planning"))
def test_an_arena_is_taken_only_where_it_pays_for_the_longest_batch_seen(longest):
    lengths = [400, 344, 620, 376, 680, 700, 320, 456, 536, 720]
    lengths[longest] = 1368
    trace = Training(Model(token_bytes=32 << 10, logit_bytes=512 << 10), [(length,) for length in lengths]).core()
    expandable = replay(trace, "expandable").peaks().reserved_bytes
    ours = replay(trace, "stalloc", config=StallocConfig(cache="off", log_level="error"))
    assert ours.peaks().reserved_bytes <= expandable
    assert ours.plan is None or ours.plan["variable_bytes"].max() >= 8 * 1368


@pytest.mark.parametrize("seed", range(12))
def test_a_first_run_needs_no_more_than_without_us_whatever_the_lengths(seed):
    draw = random.Random(seed)
    trace = Training(Model.random(draw), random_lengths(draw, 14, draw.randint(1, 3))).core()
    native = replay(trace, "native").peaks().reserved_bytes
    ours = replay(trace, "stalloc", config=StallocConfig(cache="off", log_level="error"), handover_audited=draw.random() < 0.5)
    assert ours.peaks().reserved_bytes <= native


@pytest.mark.parametrize("seed", (0, 3, 4, 5))
def test_a_first_run_needs_no_more_than_expandable_segments(seed):
    draw = random.Random(seed)
    trace = Training(Model.random(draw), random_lengths(draw, 14, draw.randint(1, 3))).core()
    ours = replay(trace, "stalloc", config=StallocConfig(cache="off", log_level="error"), handover_audited=draw.random() < 0.5)
    assert ours.peaks().reserved_bytes <= replay(trace, "expandable").peaks().reserved_bytes


@pytest.mark.parametrize("checkpoints", (False, True))
def test_a_second_run_with_longer_batches_takes_no_room_beside_that_of_its_plan(checkpoints, tmp_path):
    model = Model(weight_bytes=64 << 20, token_bytes=16 << 10, logit_bytes=256 << 10, checkpoints=checkpoints)
    config = StallocConfig(cache_dir=str(tmp_path), log_level="error")
    shorter = [(400, 344), (520, 376), (480, 500), (320, 456), (512, 420), (336, 300)]
    replay(Training(model, shorter).core(), "stalloc", config=config, name="longer")
    trace = Training(model, [*shorter[:4], (840, 416), (300, 912), (700, 640)]).core()
    ours = replay(trace, "stalloc", config=config, name="longer")
    assert ours.activated_at_step == 0
    assert ours.peaks().reserved_bytes <= min(1.02 * ours.rounded_peak_bytes, replay(trace, "expandable").peaks().reserved_bytes)
