"""Processes of one training run: started together, ended together, and nothing of theirs left behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

_BUILDS = Path(__file__).resolve().parent.parent / "build" / "torch_extensions"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run_ranks(command: Sequence[str], env: Mapping[str, str], port: int, timeout_s: float, **options: object) -> subprocess.CompletedProcess[str]:
    """`command` and all that it starts, whose ranks meet at `port`. What still runs after `timeout_s` is killed with it:
    a rank that outlives its launcher keeps the port and DeepSpeed's lock on what it compiles.

    Raises subprocess.TimeoutExpired.
    """
    process = subprocess.Popen(command, env=env, text=True, errors="replace", start_new_session=True, **options)  # type: ignore[call-overload]
    try:
        stdout, stderr = process.communicate(timeout=timeout_s)
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()
        # On CPUs DeepSpeed's ranks share 66 MiB each under a name with the port, which nothing takes away again.
        for path in Path("/dev/shm").glob(f"deepspeed_allreduce_buffer_*_{port}_*"):
            path.unlink(missing_ok=True)
    return subprocess.CompletedProcess(command, process.returncode, stdout, stderr)


def use_own_builds() -> None:
    """Has DeepSpeed compile below build/ of this checkout. A process killed while it compiled leaves a lock behind, for
    which all later ones wait without end: those are taken away here, before any run is started."""
    os.environ["TORCH_EXTENSIONS_DIR"] = str(_BUILDS)
    # Hosts find this interpreter's ninja in some processes and the system's in others. Each compiles anew what the other
    # has compiled, a minute each time.
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    for lock in _BUILDS.rglob("lock"):
        lock.unlink()
