"""Runs recipes in processes of their own and reads back what they left: losses, figures and output."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from recipes.processes import free_port, run_ranks

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True)
class Recipe:
    name: str
    command: tuple[str, ...]
    """As a user types it at the top of a checkout; the first word is a program beside the interpreter."""
    num_ranks: int = 1


@dataclass(frozen=True)
class Run:
    losses: list[list[str]]
    """For each rank, the loss of each step as a hex float."""
    peaks: tuple[int, int] | None
    """Rank 0's allocated and reserved peaks as torch counts them, in bytes; None on a CPU."""
    figures: list[dict[str, Any]]
    """For each rank, its summary file; empty when we were switched off."""
    seconds: float
    output: str


RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe(
            "trainer",
            ("accelerate", "launch", "--config_file", "recipes/trainer_llama.yaml", "recipes/trainer_llama.py"),
        ),
        Recipe(
            "accelerate",
            ("accelerate", "launch", "--config", "recipes/accelerate_plain.yaml", "recipes/accelerate_loop.py"),
        ),
        Recipe(
            "accelerate-deepspeed",
            ("accelerate", "launch", "--config", "recipes/accelerate_deepspeed.yaml", "recipes/accelerate_loop.py"),
            num_ranks=2,
        ),
        Recipe(
            "zero2",
            ("deepspeed", "--num_gpus", "2", "recipes/deepspeed_zero.py", "--deepspeed_config", "recipes/zero2.json"),
            num_ranks=2,
        ),
        Recipe(
            "zero3",
            ("deepspeed", "--num_gpus", "2", "recipes/deepspeed_zero.py", "--deepspeed_config", "recipes/zero3.json"),
            num_ranks=2,
        ),
        Recipe(
            "qwen3-moe",
            ("accelerate", "launch", "--config_file", "recipes/qwen3_moe.yaml", "recipes/qwen3_moe.py"),
        ),
        Recipe("bare", ("python", "recipes/bare_loop.py")),
    )
}


class RecipeFailed(RuntimeError):
    """A recipe's process ended with an error; the text ends with its output."""


def run_recipe(
    recipe: Recipe,
    folder: Path,
    *,
    is_disabled: bool = False,
    on_cpu: bool = True,
    arguments: Sequence[str] = (),
    timeout_s: float = 600,
) -> Run:
    """One run of `recipe`; runs in the same folder share a plan store and have the same command line.

    Raises RecipeFailed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for path in [*folder.glob("losses-*"), *folder.glob("figures-*")]:
        path.unlink()
    # The files' names are arguments, so they stay the same: the command line is part of what finds a plan again.
    port = free_port()
    command = [*_launcher(recipe.command, port), "--losses", str(folder / "losses-{rank}"), *arguments]
    began = time.monotonic()
    done = run_ranks(
        command,
        _environment(folder, is_disabled, on_cpu),
        port,
        timeout_s,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    seconds = time.monotonic() - began
    if done.returncode != 0:
        raise RecipeFailed(f"run: recipe={recipe.name}, ended with status {done.returncode}.\n{done.stdout}")
    lines = [[line.split() for line in (folder / f"losses-{rank}").open()] for rank in range(recipe.num_ranks)]
    last = lines[0][-1]
    return Run(
        losses=[[columns[0] for columns in rank_lines] for rank_lines in lines],
        peaks=(int(last[1]), int(last[2])) if len(last) == 3 else None,
        figures=[json.loads(path.read_text()) for path in sorted(folder.glob("figures-*"))],
        seconds=seconds,
        output=done.stdout,
    )


def _launcher(command: Sequence[str], meeting: int) -> list[str]:
    """The program beside this interpreter, with a port of its own where ranks meet."""
    program, *rest = command
    port = ["--master_port", str(meeting)] if program == "deepspeed" else []
    if program == "accelerate":
        rest, port = rest[1:], ["launch", "--main_process_port", str(meeting)]
    path = Path(sys.executable).parent / program
    return [str(path) if path.exists() else program, *port, *rest]


def _environment(folder: Path, is_disabled: bool, on_cpu: bool) -> dict[str, str]:
    """What a recipe's processes see: nothing of a developer's own settings, but where the torch part was built."""
    kept = ("STALLOC_EXTENSION_DIR",)
    env = {name: value for name, value in os.environ.items() if not name.startswith("STALLOC_") or name in kept}
    env.update(
        HF_HUB_OFFLINE="1",
        TOKENIZERS_PARALLELISM="false",
        CUBLAS_WORKSPACE_CONFIG=":4096:8",
        STALLOC_CACHE_DIR=str(folder / "cache"),
        STALLOC_SUMMARY_FILE=str(folder / "figures-{rank}"),
    )
    if is_disabled:
        env["STALLOC_DISABLE"] = "1"
    if on_cpu:
        env.update(CUDA_VISIBLE_DEVICES="", DS_ACCELERATOR="cpu", OMP_NUM_THREADS="1")
    return env
