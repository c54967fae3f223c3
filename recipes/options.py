"""The command-line options that the training scripts share."""

from __future__ import annotations

import argparse
import os

import torch


def parse(description: str, *, add=None) -> argparse.Namespace:
    """Options of a script; `add(parser)` adds the script's own. Sets deterministic mode and the seed."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--size", default="tiny", help="model size, a key of recipes/models.py")
    parser.add_argument("--steps", type=int, default=12, help="optimizer steps")
    parser.add_argument("--batch", type=int, default=4, help="sequences a device and micro-step")
    parser.add_argument("--length", type=int, default=32, help="tokens in a sequence")
    parser.add_argument("--losses", help="file for this rank's losses as hex floats; {rank} is replaced")
    if add is not None:
        add(parser)
    args = parser.parse_args()
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(0)
    return args
