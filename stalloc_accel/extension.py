"""Builds and loads the part of the engine that is compiled against the installed torch.

One build serves one exact torch, Python, compiler and state of our sources. It is kept in a folder of the user under a
name made of these, so that another torch finds another build, and never the wrong one.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import platform
import shlex
import shutil
import stat
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from . import environment, sources, toolchain
from .errors import BuildError, describe

__all__ = ["BACKENDS", "Build", "find", "load", "plan_build"]

BACKENDS = ("cuda", "cpu")

_COMPILE_TIMEOUT_S = 900
# A rank that waits for another's build waits for all of its files.
_LOCK_TIMEOUT_S = 1800
# Builds kept for one backend: of other versions of torch, Python or ours that are still in use.
_NUM_KEPT = 6
_FLAGS = ("-O2", "-fPIC", "-fvisibility=hidden", "-pthread")
_FALL_BACK = "Training stays on torch's own allocator until this is put right; `stalloc doctor` shows what is missing."


@dataclass(frozen=True)
class Build:
    """What is compiled for one backend, from what, and where it is kept."""

    backend: str
    torch: toolchain.TorchInstallation
    compiler: toolchain.Compiler | None
    files: tuple[Path, ...]
    include_dirs: tuple[Path, ...]
    """Folders of ours come first, then those of others, whose warnings are not shown."""
    prefix: str
    """The folder's name up to the compiler: a machine without a compiler takes any build that starts so."""

    @property
    def module_name(self) -> str:
        return f"_torch_{self.backend}"

    @property
    def folder(self) -> Path:
        compiler = self.compiler.version if self.compiler else "none"
        return environment.extension_dir() / f"{self.prefix}-{_digest([compiler.encode()])[:8]}"

    @property
    def library(self) -> Path:
        return self.folder / f"{self.module_name}{sysconfig.get_config_var('EXT_SUFFIX')}"


def load(backend: str) -> ModuleType:
    """The module for `backend`, "cuda" or "cpu"; built where it has not been.

    Raises BuildError with one text for the user where it cannot be built or loaded. Safe to call from many ranks and
    threads at once: one builds, the others wait.
    """
    name = f"stalloc_accel._torch_{backend}"
    if name in sys.modules:
        return sys.modules[name]
    build = plan_build(backend)
    library = find(build) or _make(build)
    spec = importlib.util.spec_from_file_location(name, library)
    try:
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except ImportError as error:
        raise BuildError(describe("load", "library", str(library), f"must be loadable ({error})",
                                  f"Remove the folder to build it again. {_FALL_BACK}")) from error
    return sys.modules.setdefault(name, module)


def plan_build(backend: str) -> Build:
    """What load() would build. Raises BuildError where something that every build needs is missing."""
    if backend not in BACKENDS:
        raise BuildError(describe("build", "backend", backend, 'must be "cuda" or "cpu"'))
    torch = toolchain.installed_torch()
    csrc = sources.csrc_dir()
    ours, others = [csrc], [torch.include_dir, toolchain.python_include_dir()]
    if backend == "cuda":
        headers = _cuda_headers(torch)
        others.append(headers.folder)
        if not headers.is_complete:
            others.append(csrc / "torch" / "cuda_headers")
    files = _files(csrc, backend)
    identity = [torch.version, torch.git_version, sys.version, platform.machine(), *_FLAGS, *map(str, others)]
    contents = [path.read_bytes() for path in (*files, *sorted(csrc.rglob("*.h")))]
    digest = _digest([part.encode() for part in identity] + contents)[:16]
    return Build(
        backend=backend,
        torch=torch,
        compiler=toolchain.find_compiler(),
        files=files,
        include_dirs=(*ours, *others),
        prefix=f"{backend}-torch{torch.version}-{sys.implementation.cache_tag}-{digest}",
    )


def find(build: Build) -> Path | None:
    """The library, if it was built before; without a compiler here, one that another compiler made."""
    root = environment.extension_dir()
    if not root.is_dir():
        return None
    _check_folder(root)
    folders = [build.folder] if build.compiler else sorted(root.glob(f"{build.prefix}-*"))
    return next((folder / build.library.name for folder in folders if (folder / build.library.name).is_file()), None)


def _cuda_headers(torch: toolchain.TorchInstallation) -> toolchain.CudaHeaders:
    if torch.cuda_version is None:
        raise BuildError(describe("build", "torch", torch.version, "must be a build for CUDA",
                                  "Install a CUDA build of torch, or use the CPU backend."))
    headers = toolchain.find_cuda_headers(torch.cuda_version)
    if headers is None:
        major = torch.cuda_version.split(".")[0]
        package = "nvidia-cuda-runtime-cu12" if major == "12" else f"nvidia-cuda-runtime=={major}.*"
        raise BuildError(describe("build", "cuda", torch.cuda_version, f"needs headers of CUDA {major}",
                                  f"Set CUDA_HOME to a toolkit, or run: pip install {package}. {_FALL_BACK}"))
    return headers


def _files(csrc: Path, backend: str) -> tuple[Path, ...]:
    other = "cpu_" if backend == "cuda" else "cuda_"
    found = [*csrc.glob("core/*.cpp"), *csrc.glob("runtime/*.cpp"), *csrc.glob("torch/*.cpp")]
    found += [csrc / "python" / name for name in ("engine_class.cpp", "plan_arrays.cpp")]
    # The simulated and the host upstream are for replays and tests.
    left_out = (other, "simulated_", "host_")
    return tuple(sorted(path for path in found if not path.name.startswith(left_out)))


def _make(build: Build) -> Path:
    """Builds under a lock, in a folder that no one reads, and puts it in its place in one step."""
    from filelock import FileLock, Timeout

    if build.compiler is None:
        raise BuildError(describe("build", "compiler", environment.compiler(), "must be a C++17 compiler that runs",
                                  f"Install g++ or set CXX. {_FALL_BACK}"))
    root = environment.extension_dir()
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        _check_folder(root)
        with FileLock(root / f"{build.folder.name}.lock", timeout=_LOCK_TIMEOUT_S):
            library = find(build)
            if library is None:
                with tempfile.TemporaryDirectory(prefix=".building-", dir=root) as scratch:
                    library = _compile(build, Path(scratch))
                _remove_oldest(root, build.backend)
    except Timeout as error:
        raise BuildError(describe("build", "lock", str(error.lock_file), f"was held for {_LOCK_TIMEOUT_S} s",
                                  f"End the process that holds it. {_FALL_BACK}")) from error
    except OSError as error:
        raise BuildError(describe("build", "extension_dir", str(root), f"must be writable ({error})",
                                  f"Set STALLOC_EXTENSION_DIR to a folder of yours. {_FALL_BACK}")) from error
    return library


def _remove_oldest(root: Path, backend: str) -> None:
    """Keeps the newest builds. A process that has loaded an older one keeps its mapping; the next builds it again."""
    with contextlib.suppress(FileNotFoundError):  # another rank is at it too
        folders = [path for path in root.glob(f"{backend}-*") if path.is_dir() and not path.is_symlink()]
        for folder in sorted(folders, key=lambda path: path.stat().st_mtime)[:-_NUM_KEPT]:
            shutil.rmtree(folder, ignore_errors=True)
            folder.with_name(f"{folder.name}.lock").unlink(missing_ok=True)


def _compile(build: Build, scratch: Path) -> Path:
    csrc = build.include_dirs[0]
    include = [f"-I{csrc}", *(word for folder in build.include_dirs[1:] for word in ("-isystem", str(folder)))]
    language = f"-std={toolchain.cxx_standard(build.torch.version)}"
    command = [build.compiler.path, *shlex.split(environment.compiler())[1:], language, *_FLAGS, *include]
    objects = [scratch / f"{path.parent.name}-{path.stem}.o" for path in build.files]
    jobs = [[*command, "-c", str(path), "-o", str(out)] for path, out in zip(build.files, objects)]
    with ThreadPoolExecutor(max_workers=max(1, len(os.sched_getaffinity(0)))) as pool:
        list(pool.map(_run, jobs))
    # Not linked to libcudart: torch's own c10_cuda brings the one that torch uses.
    libraries = ["-lc10"] + (["-lc10_cuda"] if build.backend == "cuda" else [])
    out = scratch / "out"
    out.mkdir()
    _run([build.compiler.path, "-shared", "-pthread", *map(str, objects), "-o", str(out / build.library.name),
          f"-L{build.torch.library_dir}", *libraries])
    try:
        out.rename(build.folder)
    except OSError:
        # A half-removed folder of that name: what is in it is not ours to keep.
        shutil.rmtree(build.folder)
        out.rename(build.folder)
    return build.library


def _run(command: Sequence[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_COMPILE_TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        raise BuildError(describe("build", "command", shlex.join(command), f"took over {_COMPILE_TIMEOUT_S} s",
                                  _FALL_BACK)) from error
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        first = next((line for line in lines if "error" in line), lines[-1] if lines else "no message")
        raise BuildError(f"build: command={shlex.join(command)!r}, must end with status 0. The compiler says: {first}. "
                         f"{_FALL_BACK}")


def _check_folder(root: Path) -> None:
    """What is loaded from it runs as this user: nobody else may be able to write there."""
    found = root.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise BuildError(describe("load", "extension_dir", str(root), "must be a folder that only you can write",
                                  f"Run chmod 700 on it, or set STALLOC_EXTENSION_DIR to a folder of yours. {_FALL_BACK}"))


def _digest(parts: Sequence[bytes]) -> str:
    hasher = hashlib.sha256()
    for part in parts:
        hasher.update(len(part).to_bytes(8, "little"))
        hasher.update(part)
    return hasher.hexdigest()
