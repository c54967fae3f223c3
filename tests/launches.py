"""Runs the scripts of door_scripts as a user would, in processes of their own, and reads what each rank wrote."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from recipes.processes import free_port, run_ranks

SCRIPTS = Path(__file__).parent / "door_scripts"
BIN = Path(sys.executable).parent


@dataclass
class Launch:
    """A finished command. `figures` are the ranks' summaries by rank; `printed` is the JSON line of the script."""

    code: int
    stdout: str
    stderr: str
    figures: dict[int, dict[str, Any]] = field(default_factory=dict)

    @property
    def printed(self) -> dict[str, Any]:
        lines = [line for line in self.stdout.splitlines() if line.startswith("{")]
        assert lines, self.output
        return json.loads(lines[-1])

    @property
    def output(self) -> str:
        return f"exit code {self.code}\n{self.stdout}\n{self.stderr}"


def run(folder: Path, *command: object, **environ: str) -> Launch:
    """Runs a command in `folder`, on the CPU and offline; keywords are environment variables."""
    summaries = folder / "figures"
    summaries.mkdir(exist_ok=True)
    for old in summaries.iterdir():
        old.unlink()
    port = free_port()
    words = [str(part) for part in command]
    if words[0] == str(BIN / "deepspeed"):
        words[1:1] = ["--master_port", str(port)]
    variables = {
        **os.environ, "STALLOC_SUMMARY_FILE": str(summaries / "{rank}.json"), "DS_ACCELERATOR": "cpu",
        "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "hf"), "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(SCRIPTS), *filter(None, [os.environ.get("PYTHONPATH")])]),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), **environ,
    }
    done = run_ranks(words, variables, port, 240, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    figures = {int(path.stem): json.loads(path.read_text()) for path in summaries.iterdir()}
    return Launch(done.returncode, done.stdout, done.stderr, figures)


def python(folder: Path, *arguments: object, **environ: str) -> Launch:
    return run(folder, sys.executable, *arguments, **environ)


def one_rank() -> dict[str, str]:
    """What a launcher tells its only rank; DeepSpeed asks for it."""
    return {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}
