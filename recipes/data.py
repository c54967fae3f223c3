"""Token sequences that depend on nothing but their index."""

from __future__ import annotations

import torch
from torch.utils.data import Dataset


class RandomTokens(Dataset):
    """`num_samples` sequences of `length` tokens below `vocab_size`, the same in every run."""

    def __init__(self, *, num_samples: int, length: int, vocab_size: int):
        self.num_samples = num_samples
        self.length = length
        self.vocab_size = vocab_size

    def __len__(self) -> int:
        return self.num_samples

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(index)
        tokens = torch.randint(self.vocab_size, (self.length,), generator=generator)
        return {"input_ids": tokens, "labels": tokens.clone()}


def tokens_for(model, args, num_batches: int) -> RandomTokens:
    return RandomTokens(num_samples=args.batch * num_batches, length=args.length, vocab_size=model.config.vocab_size)
