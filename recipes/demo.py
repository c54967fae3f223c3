"""`make demo`: a Trainer and a ZeRO recipe, each without us, for the first and for the second time, with a report.

On a machine with a CUDA device the same recipes run there with a larger model.
"""

from __future__ import annotations

import importlib.util
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from recipes.processes import use_own_builds
from recipes.runner import RECIPES, Recipe, Run, run_recipe

# 0.37B parameters in steps of 8 x 1024 tokens: minutes on one GPU.
_CUDA_ARGUMENTS = ("--size", "small", "--batch", "8", "--length", "1024")
_CUDA_ZERO = Recipe(
    "zero2",
    ("deepspeed", "--num_gpus", "1", "recipes/deepspeed_zero.py", "--deepspeed_config", "recipes/zero2_cuda.json"),
)


def main() -> int:
    console = Console(width=max(Console().width, 110))
    use_own_builds()
    on_cpu = not torch.cuda.is_available()
    recipes = [RECIPES["trainer"]]
    if importlib.util.find_spec("deepspeed") is None:
        console.print("deepspeed is not installed: its recipe is left out", style="yellow")
    else:
        recipes.append(RECIPES["zero2"] if on_cpu else _CUDA_ZERO)
    arguments = () if on_cpu else _CUDA_ARGUMENTS
    all_equal = True
    for recipe in recipes:
        with tempfile.TemporaryDirectory() as folder:
            runs = {}
            for label in ("without stalloc", "first run", "second run"):
                console.print(f"[bold]{recipe.name}[/bold], {label}: {' '.join(recipe.command)}")
                runs[label] = run_recipe(
                    recipe,
                    Path(folder) / ("without" if label == "without stalloc" else "with"),
                    is_disabled=label == "without stalloc",
                    on_cpu=on_cpu,
                    arguments=arguments,
                )
                _print_our_lines(console, runs[label])
        console.print(_report(recipe, runs))
        all_equal &= all(run.losses == runs["without stalloc"].losses for run in runs.values())
    if not all_equal:
        console.print("Losses differ: that must not happen; please report it.", style="bold red")
    return 0 if all_equal else 1


def _print_our_lines(console: Console, run: Run) -> None:
    for line in run.output.splitlines():
        if line.startswith("[stalloc]"):
            console.print(f"  {line}", style="cyan", markup=False, highlight=False, soft_wrap=True)


def _report(recipe: Recipe, runs: dict[str, Run]) -> Table:
    """One column a run, rank 0's figures."""
    reference = runs["without stalloc"].losses
    table = Table(title=f"{recipe.name} on {'CUDA' if torch.cuda.is_available() else 'CPU'}", title_justify="left")
    table.add_column("")
    for label in runs:
        table.add_column(label, justify="right")
    for label, read in _OUR_ROWS.items():
        table.add_row(label, *(read(run.figures[0]) if run.figures else "" for run in runs.values()))
    for label, show in _TORCH_ROWS.items():
        table.add_row(label, *("n/a on CPU" if run.peaks is None else show(*run.peaks) for run in runs.values()))
    table.add_row("seconds of the whole run", *(f"{run.seconds:.1f}" for run in runs.values()))
    table.add_row("losses equal, bit for bit", *("yes" if run.losses == reference else "NO" for run in runs.values()))
    return table


def _bytes(value: int | None) -> str:
    if value is None:
        return "n/a on CPU"
    return f"{value / 2**30:.3f} GiB" if value >= 2**28 else f"{value / 2**20:.2f} MiB"


def _share(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.4f}"


def _of(section: str, name: str, show: Any) -> Any:
    return lambda figures: "n/a" if figures[section] is None else show(figures[section][name])


# What the summary file says. "Since activation" is where a plan can show what it is worth.
_OUR_ROWS: dict[str, Any] = {
    "state": lambda figures: figures["state"],
    "active from step": lambda figures: str(figures["activated_at_step"]),
    "plan from the store": lambda figures: "yes" if figures["from_cache"] else "no",
    "seconds to plan": _of("plan", "seconds", lambda value: "0 (found)" if value is None else f"{value:.2f}"),
    "arena": _of("plan", "arena_bytes", _bytes),
    "arena's lower bound": _of("plan", "lower_bound_bytes", _bytes),
    "allocated since activation": _of("steady", "allocated_peak_bytes", _bytes),
    "reserved since activation": _of("steady", "reserved_peak_bytes", _bytes),
    "efficiency since activation": _of("steady", "efficiency", _share),
    "hit rate": lambda figures: _share(figures["hit_rate"]),
    "hit rate of planned": lambda figures: _share(figures["hit_rate_planned"]),
    "fallbacks": lambda figures: "\n".join(f"{why} {n}" for why, n in figures["fallbacks"].items()) or "none",
}
# What torch itself counted, in the run without us too.
_TORCH_ROWS: dict[str, Any] = {
    "allocated, whole run": lambda allocated, reserved: _bytes(allocated),
    "reserved, whole run": lambda allocated, reserved: _bytes(reserved),
    "efficiency, whole run": lambda allocated, reserved: _share(allocated / reserved),
}


if __name__ == "__main__":
    sys.exit(main())
