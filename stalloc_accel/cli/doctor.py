"""`stalloc doctor`: what is installed, what can be built here, and whether a script's settings will reach us."""

from __future__ import annotations

import argparse
import dataclasses
import json
import platform
import sys
from collections.abc import Callable, Iterator
from importlib import metadata
from typing import Any

from .. import __version__, environment, extension, toolchain
from ..errors import BuildError, PlanFileError

_HOSTS = ("accelerate", "transformers", "deepspeed")


@dataclasses.dataclass(frozen=True)
class Check:
    """One thing that was looked at."""

    name: str
    state: str
    """"ok", "note" where something is missing that this machine does not need, "problem" where it needs it."""
    text: str


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "doctor", help="what is installed, what can be built, and whether the door is open",
        description="Looks at this machine and says what works. The exit status is 1 when there is a problem.",
    )
    parser.add_argument("--build", action="store_true", help="build the part for the installed torch now, if it is not")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    checks = list(examine(build=args.build))
    problems = [check for check in checks if check.state == "problem"]
    if args.json:
        document = {"ok": not problems, "checks": [dataclasses.asdict(check) for check in checks]}
        print(json.dumps(document, indent=2))
    else:
        _print_table(checks, problems)
    return 1 if problems else 0


def examine(build: bool = False) -> Iterator[Check]:
    """Looks at everything, and changes nothing unless asked to `build`."""
    yield from _look_at_ourselves()
    torch = _look_at_torch()
    yield torch
    for look in (_look_at_hosts, _look_at_tools, _look_at_door, _look_at_plans):
        yield from look()
    if torch.state == "ok":
        yield from _look_at_devices()
        for backend in extension.BACKENDS:
            yield _look_at_backend(backend, build)
        yield from _look_at_settings()


def _look_at_ourselves() -> Iterator[Check]:
    yield Check("stalloc-accel", "ok", f"{__version__}, Python {platform.python_version()}, {platform.machine()}")
    try:
        from .. import _core  # noqa: F401
    except ImportError as error:
        yield Check("core", "problem", f"cannot be loaded: {error}. Reinstall stalloc-accel.")
    else:
        yield Check("core", "ok", "planner and engine are loaded")


def _look_at_torch() -> Check:
    try:
        torch = toolchain.installed_torch()
    except (ImportError, BuildError) as error:
        return Check("torch", "problem", str(error))
    kind = f"CUDA {torch.cuda_version}" if torch.cuda_version else "no CUDA"
    return Check("torch", "ok", f"{torch.version}, {kind}, {torch.folder}")


def _look_at_hosts() -> Iterator[Check]:
    found = [f"{name} {version}" for name in _HOSTS if (version := _version(name)) is not None]
    absent = [name for name in _HOSTS if _version(name) is None]
    text = ", ".join(found) or "none"
    yield Check("hosts", "ok" if found else "note", text + (f"; not installed: {', '.join(absent)}" if absent else ""))


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _look_at_tools() -> Iterator[Check]:
    compiler = toolchain.find_compiler()
    if compiler is None:
        yield Check("compiler", "note", f"{environment.compiler()} cannot be run; install g++ or set CXX to build here")
    else:
        yield Check("compiler", "ok", f"{compiler.version}, {compiler.path}")
    yield _attempt("Python headers", toolchain.python_include_dir)


def _attempt(name: str, look: Callable[[], object]) -> Check:
    try:
        return Check(name, "ok", str(look()))
    except BuildError as error:
        return Check(name, "note", str(error))


def _look_at_devices() -> Iterator[Check]:
    import torch

    cuda = torch.version.cuda
    if cuda is None:
        yield Check("devices", "note", "the installed torch is not built for CUDA: only the CPU backend can be used")
        return
    # Counted without starting CUDA in this process.
    count = torch.cuda.device_count()
    yield Check("devices", "ok" if count else "note", f"{count} CUDA devices" if count else "no CUDA device is visible")
    headers = toolchain.find_cuda_headers(cuda)
    if headers is None:
        major = cuda.split(".")[0]
        yield Check("CUDA headers", "note", f"none of CUDA {major} were found; set CUDA_HOME or install the nvidia "
                    f"wheel nvidia-cuda-runtime of that version")
    else:
        complete = "" if headers.is_complete else ", completed by ours"
        yield Check("CUDA headers", "ok", f"{'.'.join(map(str, headers.version))}{complete}, {headers.folder}")


def _look_at_backend(backend: str, build: bool) -> Check:
    name = f"{backend} backend"
    try:
        planned = extension.plan_build(backend)
        library = extension.find(planned)
        if library is None and build:
            extension.load(backend)
            library = planned.library
    except (BuildError, ImportError) as error:
        return Check(name, "problem" if _is_wanted(backend) else "note", str(error))
    if library is not None:
        return Check(name, "ok", f"built: {library}")
    if planned.compiler is None:
        text = "not built, and there is no compiler to build it with; install g++ or set CXX"
        return Check(name, "problem" if _is_wanted(backend) else "note", text)
    return Check(name, "ok", f"will be built at first use, in a minute or so (now: stalloc doctor --build): {planned.folder}")


def _is_wanted(backend: str) -> bool:
    """Whether a run with backend: auto would take it on this machine."""
    import torch

    return backend == ("cuda" if torch.cuda.is_available() else "cpu")


def _look_at_door() -> Iterator[Check]:
    entries = [entry for entry in metadata.entry_points().select(group="torch.backends")
               if entry.value.startswith("stalloc_accel.")]
    if not entries:
        yield Check("door", "problem", "torch does not know us: the entry point is missing. Reinstall stalloc-accel.")
    elif not environment.autoload_is_on():
        yield Check("door", "problem", "TORCH_DEVICE_BACKEND_AUTOLOAD=0 keeps torch from loading us. Unset it.")
    elif environment.is_disabled():
        yield Check("door", "note", "STALLOC_DISABLE is set: settings are accepted, and nothing is done")
    else:
        yield Check("door", "ok", "torch loads us when it is imported; a section in a configuration is enough")


def _look_at_settings() -> Iterator[Check]:
    """Variables that keep the CUDA allocator from being wrapped, or that nothing reads."""
    settings = environment.allocator_settings()
    state = "problem" if _is_wanted("cuda") else "note"
    if "PYTORCH_NO_CUDA_MEMORY_CACHING" in settings:
        yield Check("PYTORCH_NO_CUDA_MEMORY_CACHING", state, "torch does not cache memory then; unset it")
    for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
        if "cudaMallocAsync" in settings.get(name, ""):
            yield Check(name, state, "cudaMallocAsync cannot be wrapped; take the backend out of it")
    for warning in environment.unknown_variables():
        yield Check("environment", "note", warning)


def _look_at_plans() -> Iterator[Check]:
    from ..plan_store import PlanStore

    folder = environment.cache_dir()
    try:
        count = len(PlanStore(folder, "readonly").entries())
    except (PlanFileError, OSError) as error:
        yield Check("plans", "problem", str(error))
    else:
        yield Check("plans", "ok", f"{count} in {folder}")


def _print_table(checks: list[Check], problems: list[Check]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(file=sys.stdout)
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    styles = {"ok": "green", "note": "yellow", "problem": "bold red"}
    for check in checks:
        table.add_row(Text(check.state, style=styles[check.state]), Text(check.name), Text(check.text))
    console.print(table)
    summary = "No problem found." if not problems else f"{len(problems)} to put right: {', '.join(c.name for c in problems)}."
    console.print(Text(summary, style=styles["problem" if problems else "ok"]))
