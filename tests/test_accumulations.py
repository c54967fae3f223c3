"""Accumulation over micro-steps with batches of other lengths each: what a first and a second run need."""

from __future__ import annotations

import pytest
from accumulations import Model, Training

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
