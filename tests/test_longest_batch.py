"""max_length: room for the longest batch before it comes, where a host tells how many samples it has."""

from __future__ import annotations

import pytest
from accumulations import Model, Training
from histories import KIB

from stalloc_accel import _core
from stalloc_accel.config import StallocConfig
from stalloc_accel.longest_batch import LongestBatch
from stalloc_accel.replay import ReplaySession


@pytest.mark.parametrize(("fields", "num_samples"), [
    ({"trainer.per_device_train_batch_size": 8, "trainer.world_size": 2, "trainer.accelerator_config.split_batches": False}, 8),
    ({"trainer.per_device_train_batch_size": 8, "trainer.world_size": 2, "trainer.accelerator_config.split_batches": True}, 4),
    ({"accelerate.batch_size": 8, "accelerate.world_size": 4, "accelerate.split_batches": True}, 2),
    ({"accelerate.batch_size": 8, "accelerate.world_size": 4, "accelerate.split_batches": None}, 8),
    ({"deepspeed.train_micro_batch_size_per_gpu": 3, "accelerate.batch_size": 8, "accelerate.world_size": 4, "accelerate.split_batches": True}, 3),
])
def test_the_longest_batch_has_as_many_samples_as_a_rank_gets(fields, num_samples):
    assert LongestBatch.of_run(16, fields).num_samples == num_samples


@pytest.mark.parametrize(("max_length", "settings", "planned_length"), [
    (2000, {}, 2000), (2000, {"max_arena": "1200MiB"}, 680), (1 << 20, {}, 680), (1 << 31, {}, 680)],
    ids=("fits", "more than max_arena", "more than the device", "more than any plan"))
def test_room_for_the_longest_batch_is_made_only_where_there_is_as_much(max_length, settings, planned_length, tmp_path):
    trace = Training(Model(token_bytes=16 * KIB, logit_bytes=256 * KIB), [(length,) for length in (400, 680, 520, 376, 620, 560, 640, 320)]).core()
    config = StallocConfig.from_mapping({"cache_dir": str(tmp_path), "log_level": "error", "max_length": max_length, **settings}, source="test")
    states = []
    for _ in range(2):
        run = _core.SimulatedRun(trace, {})
        with ReplaySession(run, config, "longest") as session:
            session.attach(None, {"accelerate.batch_size": 1})
            for mark in trace.step_begin[1:]:
                assert run.advance(int(mark))
                session.step()
            assert session.served_plan["variable_bytes"].max() == 8 * planned_length, session.reason
            states.append((session.state.value, session.from_cache))
        run.finish()
    assert states == [("active", False), ("active", True)]
