"""Keys: the same in every process, different where allocations differ, and readable."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from stalloc_accel.config import StallocConfig
from stalloc_accel.fingerprint import explain, launch_key, make_key

SCRIPT = Path(__file__).parent / "host_fingerprints.py"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The fields of the same configurations, made in two processes with different hash seeds."""
    results = []
    for seed in ("1", "2"):
        path = tmp_path_factory.mktemp("fields") / "fields.json"
        done = subprocess.run([sys.executable, str(SCRIPT), str(path)], capture_output=True, text=True, timeout=300,
                              env={**os.environ, "PYTHONHASHSEED": seed})
        assert done.returncode == 0, done.stderr
        results.append(json.loads(path.read_text()))
    return results


def test_two_processes_make_the_same_keys(runs):
    assert runs[0] == runs[1]


@pytest.mark.parametrize(("a", "b"), [
    ("llama", "llama again"), ("llama", "llama named"), ("args", "args, seed and rate"), ("zero 2", "zero 2 again"),
    ("accelerator", "accelerator again"),
])
def test_what_changes_no_allocation_keeps_the_key(runs, a, b):
    assert explain(make_key(runs[0][a]), make_key(runs[0][b])) == []


@pytest.mark.parametrize(("a", "b", "named"), [
    ("llama", "wider", "model.config.hidden_size"), ("llama", "deeper", "model.config.num_hidden_layers"),
    ("llama", "tied", "model.parameters.count"), ("llama", "eager attention", "model.attn_implementation"),
    ("llama", "no cache", "model.use_cache"), ("llama", "bfloat16", "model.parameters.dtype.bfloat16"),
    ("llama", "frozen", "model.parameters.trainable_elements"), ("llama", "compiled", "model.wrappers"),
    ("llama", "checkpointed", "model.gradient_checkpointing"), ("llama", "dropout", "model.config.attention_dropout"),
    ("checkpointed", "checkpointed, reentrant", "model.gradient_checkpointing.by.use_reentrant"),
    ("moe", "eager moe", "model.experts_implementation"), ("lora 4", "lora 8", "model.peft.default.r"),
    ("lora 4", "lora 4, other targets", "model.peft.default.target_modules"), ("llama", "plain", "model.class"),
    ("args", "args, batch", "trainer.per_device_train_batch_size"), ("args", "args, bf16", "trainer.bf16"),
    ("args", "args, accumulation", "trainer.gradient_accumulation_steps"), ("args", "args, adafactor", "trainer.optim"),
    ("args", "args, checkpointing", "trainer.gradient_checkpointing"),
    ("args", "args, eval batch", "trainer.per_device_eval_batch_size"),
    ("args", "args, cache emptied", "trainer.torch_empty_cache_steps"),
    ("accelerator", "accelerator, bf16", "accelerate.mixed_precision"),
    ("accelerator", "accelerator, accumulation", "accelerate.gradient_accumulation_steps"),
    ("zero 1", "zero 2", "deepspeed.zero.stage"), ("zero 2", "zero 3", "deepspeed.zero.stage"),
    ("zero 2", "zero 2, batch 2", "deepspeed.train_micro_batch_size_per_gpu"),
    ("zero 2", "zero 2, accumulation 2", "deepspeed.gradient_accumulation_steps"),
    ("zero 2", "zero 2, small buckets", "deepspeed.zero.reduce_bucket_size"),
    ("versions", "versions, deterministic", "flag.deterministic"), ("versions", "versions, another thread", "device.threads"),
])
def test_what_changes_allocations_changes_the_key_and_is_named(runs, a, b, named):
    a, b = make_key(runs[0][a]), make_key(runs[0][b])
    assert a != b and any(line.startswith(f"{named}: ") for line in explain(a, b))


def test_a_partitioned_model_counts_its_true_shapes(runs):
    assert runs[0]["zero 3"]["model.parameters"] == runs[0]["zero 2"]["model.parameters"]


def test_fields_are_flat_and_hold_no_address(runs):
    text = json.dumps(runs[0])
    assert "object at 0x" not in text and "127.0.0.1" not in text and "/tmp" not in text
    assert not any(isinstance(value, dict) for fields in runs[0].values() for value in fields.values())


def test_silent_settings_and_nothing_else_keep_the_launch_key(monkeypatch, tmp_path):
    script, settings = tmp_path / "train.py", tmp_path / "ds.json"
    script.write_text("pass")
    settings.write_text("{}")
    monkeypatch.setattr(sys, "argv", [str(script), "--deepspeed", str(settings)])

    def key(**changes):
        return launch_key(StallocConfig(**changes), "cpu")

    first = key()
    assert first == key(summary_file="x", log_level="error", cache_dir=tmp_path, cache="readonly")
    assert first != key(handover="none")
    settings.write_text('{"a": 1}')
    second = key()
    script.write_text("pass  # changed")
    third = key()
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    fourth = key()
    monkeypatch.setattr(sys, "argv", [*sys.argv, "--more"])
    assert len({made.digest for made in (first, second, third, fourth, key())}) == 5
    assert explain(second, third)[0].startswith("launch.script.contents: ")
