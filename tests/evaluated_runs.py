"""Histories of training that evaluates and saves between its steps, as a loop of one's own does: nobody tells a phase."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from histories import History

LENGTHS = (512, 768, 256, 640, 384, 1024, 896)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Loop:
    """What a loop does. Sizes are those of a small transformer: `width` columns of 2 bytes for each token."""

    num_layers: int = 6
    rows: int = 8
    width: int = 512
    vocabulary: int = 4000
    lengths: tuple[int, ...] = (512,)
    num_steps: int = 14
    evaluate_after: tuple[int, ...] = (4, 9)
    save_after: tuple[int, ...] = (10,)
    evaluation_rows: int = 4
    boundary: str = "end"  # of a step: "end", behind its last free; "optimizer": before gradients are freed
    is_sharded: bool = False  # layers are gathered for use; gradients live on a second stream; the root stays gathered
    keeps_outputs: bool = False  # an evaluation's, until it is over
    leaves_behind: int = 0  # bytes that each evaluation leaves for ever


class _Run:
    def __init__(self, loop: Loop, rng: np.random.Generator) -> None:
        self.loop, self.history, self.rng = loop, History(), rng
        self.marks: list[int] = []
        self.num_batches = 0
        self.root: list[int] = []
        self.weight = int(rng.integers(2, 5)) * loop.width * loop.width * 2
        self.small = [int(size) for size in rng.integers(1, 64, 4) * 512]
        self.gradients: list[int] = []

    def tokens(self, rows: int) -> int:
        length = self.loop.lengths[self.num_batches % len(self.loop.lengths)]
        self.num_batches += 1
        return rows * length

    def construct(self) -> None:
        for _ in range(self.loop.num_layers + 1):
            self.history.allocate(2 * self.weight)
            self.history.free(self.history.allocate(2 * self.weight + 4096))

    def optimize(self, step: int) -> None:
        history = self.history
        if step == 0:
            for _ in range(2 * (self.loop.num_layers + 1)):
                history.allocate(2 * self.weight)
        scratch = [history.allocate(2 * self.weight) for _ in range(self.loop.num_layers + 1)]
        history.free(*scratch)

    def gather(self) -> list[int]:
        flat = self.history.allocate(self.weight)
        parts = [self.history.allocate(self.weight // 2), self.history.allocate(self.weight // 2)]
        self.history.free(flat)
        return parts

    def forward(self, rows: int, keep: bool) -> tuple[list[int], int, int]:
        """What it keeps for a backward pass, the logits, and the tokens."""
        history, loop = self.history, self.loop
        tokens = self.tokens(rows)
        kept = [history.allocate(8 * tokens)]
        if loop.is_sharded and not self.root:
            self.root = self.gather()
        hidden = history.allocate(2 * tokens * loop.width)
        for _ in range(loop.num_layers):
            parts = self.gather() if loop.is_sharded else []
            scratch = [history.allocate(size) for size in self.small]
            inner = [history.allocate(2 * tokens * loop.width * factor) for factor in (1, 3)]
            history.free(*scratch)
            out = history.allocate(2 * tokens * loop.width)
            if keep:
                kept += [hidden, inner[0]]
                history.free(inner[1])
            else:
                history.free(*inner, hidden)
            hidden = out
            history.free(*parts)
        logits = history.allocate(2 * tokens * loop.vocabulary)
        single = history.allocate(4 * tokens * loop.vocabulary)
        history.free(history.allocate(4 * tokens * loop.vocabulary), single, hidden)
        return kept, logits, tokens

    def train(self) -> None:
        history, loop = self.history, self.loop
        kept, logits, tokens = self.forward(loop.rows, keep=True)
        history.free(history.allocate(4 * tokens * loop.vocabulary), logits)
        gradient = history.allocate(2 * tokens * loop.width)
        stream = 7 if loop.is_sharded else 0
        for layer in reversed(range(loop.num_layers)):
            parts = self.gather() if loop.is_sharded else []
            inner = history.allocate(6 * tokens * loop.width)
            self.gradients.append(history.allocate(2 * self.weight, stream))
            following = history.allocate(2 * tokens * loop.width)
            history.free(inner, gradient, *parts, kept[2 * layer + 2], kept[2 * layer + 1])
            gradient = following
        self.gradients.append(history.allocate(2 * self.weight, stream))
        history.free(gradient, kept[0], *self.root)
        self.root = []

    def evaluate(self) -> None:
        history, outputs = self.history, []
        for _ in range(3):
            kept, logits, _ = self.forward(self.loop.evaluation_rows, keep=False)
            history.free(*kept)
            if self.loop.keeps_outputs:
                outputs.append(logits)
            else:
                history.free(logits)
        if self.loop.leaves_behind:
            history.allocate(self.loop.leaves_behind)
        history.free(*outputs)

    def save(self) -> None:
        clones = [self.history.allocate(2 * self.weight) for _ in range(self.loop.num_layers // 2)]
        self.history.free(*clones)

    def mark(self) -> None:
        self.marks.append(len(self.history.rows))


def evaluated_training(loop: Loop, rng: np.random.Generator) -> Any:
    """The history, ready for replay."""
    run = _Run(loop, rng)
    run.construct()
    run.mark()
    for step in range(loop.num_steps):
        run.train()
        run.optimize(step)
        if loop.boundary == "optimizer":
            run.mark()
        run.history.free(*run.gradients)
        run.gradients = []
        if step in loop.evaluate_after:
            run.evaluate()
        if step in loop.save_after:
            run.save()
        if loop.boundary == "end":
            run.mark()
    return run.history.core(tuple(run.marks))
