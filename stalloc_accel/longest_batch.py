"""The longest batch that a program says it can meet, in the bytes by which a plan knows its batches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# Fields: the batch's size, and where a loader's batch may be shared out among the ranks, whether it is and their number.
_BATCH_SIZES = (
    ("deepspeed.train_micro_batch_size_per_gpu", None, None),
    ("trainer.per_device_train_batch_size", "trainer.accelerator_config.split_batches", "trainer.world_size"),
    ("accelerate.batch_size", "accelerate.split_batches", "accelerate.world_size"),
)
_TOKEN_ID_BYTES = 8
_DTYPES = {"model.parameters.dtype.float32": 4, "model.parameters.dtype.bfloat16": 2, "model.parameters.dtype.float16": 2}


@dataclass(frozen=True)
class LongestBatch:
    """`max_length` tokens in each of the `num_samples` samples of a micro-batch. `token_bytes`: of a token in what a step asks
    for first: its id, or its embedding where the batch was moved to the device before the step began."""

    max_length: int
    num_samples: int
    token_bytes: tuple[int, ...]

    @classmethod
    def of_run(cls, max_length: int | None, fields: Mapping[str, Any]) -> LongestBatch | None:
        """`fields`: of the model and its hosts (the run's key). None where `max_length` is, or no host tells the batch's size."""
        num_samples = _num_samples(fields)
        if max_length is None or num_samples < 1:
            return None
        dtype = max(_DTYPES, key=lambda name: fields.get(name, 0))
        embedding_bytes = (fields.get("model.hidden_size") or 0) * _DTYPES[dtype]
        return cls(max_length, num_samples, (_TOKEN_ID_BYTES, embedding_bytes) if embedding_bytes else (_TOKEN_ID_BYTES,))

    def variable_bytes(self, plan: Mapping[str, Any], met: list[int]) -> list[int]:
        """What the plan's variables must be for it, where these values were met; what counts no tokens grows with what does."""
        from stalloc_accel import _core
        return _core.needed_variables(plan, [max(value, self._at_most(value)) for value in met])

    def _at_most(self, value: int) -> int:
        """The value for the longest batch; 0 where it is no number of whole samples of up to max_length tokens."""
        for token_bytes in self.token_bytes:
            length, rest = divmod(value, token_bytes * self.num_samples)
            if rest == 0 and 0 < length <= self.max_length:
                return token_bytes * self.num_samples * self.max_length
        return 0


def _num_samples(fields: Mapping[str, Any]) -> int:
    """Of a rank's micro-batch; 0 where no host tells it."""
    for name, is_split, world_size in _BATCH_SIZES:
        if isinstance(fields.get(name), int):
            num_ranks = fields.get(world_size) if fields.get(is_split) else 1
            return fields[name] // (num_ranks or 1)
    return 0
