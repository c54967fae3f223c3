"""Histories of training that accumulates gradients over micro-steps, each with a batch of its own length."""

from __future__ import annotations

import random
from dataclasses import dataclass

from histories import KIB, MIB, History


@dataclass(frozen=True)
class Model:
    num_layers: int = 8
    weight_bytes: int = 6 * MIB
    token_bytes: int = 2 * KIB  # of one activation
    logit_bytes: int = 32 * KIB  # a token
    bucket_bytes: int = 24 * MIB  # of gradients on their way, on a stream of their own; 0: none
    checkpoints: bool = True  # only the inputs of layers are kept for the backward pass

    @staticmethod
    def random(draw: random.Random, scale: int = 8) -> Model:
        """`scale` 1: of some hundred MiB in all."""
        return Model(num_layers=draw.randint(4, 10), weight_bytes=draw.choice((2, 6, 20)) * scale * MIB,
                     token_bytes=draw.choice((1, 2, 4)) * scale * KIB, logit_bytes=draw.choice((4, 32, 64)) * scale * KIB,
                     bucket_bytes=draw.choice((0, 0, 24)) * scale * MIB,
                     checkpoints=draw.random() < 0.5)


class Training:
    """`steps`: the lengths of each step's micro-batches."""

    def __init__(self, model: Model, steps: list[tuple[int, ...]]) -> None:
        self.model, self.history, self.marks = model, History(), []
        self.gradients: list[int] = []
        self.states: list[int] = []
        for layer in range(model.num_layers):
            self.history.allocate(model.weight_bytes + 4 * KIB * (layer % 3))
        for number, lengths in enumerate(steps):
            self.marks.append(len(self.history.rows))
            for position, length in enumerate(lengths):
                self._micro_step(length, is_first=position == 0, is_unsettled=number == position == 0)
            self._update()
        self.marks.append(len(self.history.rows))

    def core(self):
        return self.history.core(tuple(self.marks))

    def _micro_step(self, length: int, is_first: bool, is_unsettled: bool) -> None:
        model, history = self.model, self.history
        batch = [history.allocate(8 * length), history.allocate(8 * length)]
        if is_unsettled:  # a first step warms up
            history.free(*[history.allocate(size * KIB) for size in (1, 8, 4096, 8, 16, 700)])
        history.free(history.allocate(9 * length + length % 97))  # a by-product, to the byte like nothing else
        kept = [self._layer(length) for _ in range(model.num_layers)]
        logits = [history.allocate(model.logit_bytes * length) for _ in range(2)]
        history.free(history.allocate(model.logit_bytes * length // 2), *reversed(logits))
        bucket = history.allocate(model.bucket_bytes, stream=7) if model.bucket_bytes else None
        for layer in reversed(range(model.num_layers)):
            again = [history.allocate(model.token_bytes * length * width) for width in (1, 3, 4)]
            gradient = history.allocate(model.weight_bytes + 4 * KIB * (layer % 3))
            if is_first:
                self.gradients.append(gradient)
            else:
                history.free(gradient)
            history.free(*again, *kept[layer])
        if bucket is not None:
            history.free(bucket)
        history.free(*batch)

    def _layer(self, length: int) -> list[int]:
        kept = [self.history.allocate(self.model.token_bytes * length)]
        inner = [self.history.allocate(self.model.token_bytes * length * width) for width in (3, 4, 4)]
        if not self.model.checkpoints:
            return kept + inner
        self.history.free(*reversed(inner))
        return kept

    def _update(self) -> None:
        first = not self.states
        for layer in range(self.model.num_layers):
            if first:
                self.states += [self.history.allocate(2 * self.model.weight_bytes + KIB * layer) for _ in range(2)]
            self.history.free(self.history.allocate(self.model.weight_bytes))
        self.history.free(*self.gradients)
        self.gradients.clear()


def random_lengths(draw: random.Random, num_steps: int = 14, num_micro_steps: int = 2) -> list[tuple[int, ...]]:
    """Log-normal, as batches padded to their longest sample are."""
    def length() -> int:
        return min(max(int(draw.lognormvariate(6.2, 0.5)) // 8 * 8, 64), 2048)
    return [tuple(length() for _ in range(num_micro_steps)) for _ in range(num_steps)]
