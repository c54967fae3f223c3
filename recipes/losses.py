"""Losses written so that two runs can be compared bit for bit."""

from __future__ import annotations

import os

import torch


class LossFile:
    """One line a step: the loss as a hex float; on CUDA also torch's allocated and reserved peaks in bytes.

    Without a path the losses are only printed.
    """

    def __init__(self, path: str | None):
        rank = os.environ.get("RANK", "0")
        self._is_printing = rank == "0"
        self._file = open(path.replace("{rank}", rank), "w") if path else None

    def add(self, loss: float) -> None:
        if self._is_printing:
            print(f"loss {loss:.6f}", flush=True)
        if self._file is None:
            return
        peaks = ""
        if torch.cuda.is_available():
            peaks = f" {torch.cuda.max_memory_allocated()} {torch.cuda.max_memory_reserved()}"
        self._file.write(float(loss).hex() + peaks + "\n")
        self._file.flush()
