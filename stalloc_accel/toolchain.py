"""What a build against the installed torch needs: the compiler, Python's, torch's and CUDA's headers."""

from __future__ import annotations

import re
import shutil
import subprocess
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from . import environment
from .errors import BuildError, describe

# Header sets without it are those of the nvidia wheels; csrc/torch/cuda_headers/ has a stand-in.
_HOST_DEFINES = Path("crt", "host_defines.h")


@dataclass(frozen=True)
class Compiler:
    path: str
    version: str
    """The first line that `--version` prints: it tells builds of the same number apart."""


@dataclass(frozen=True)
class CudaHeaders:
    folder: Path
    version: tuple[int, int]
    is_complete: bool
    """False where crt/host_defines.h is missing, as in the nvidia wheels."""


@dataclass(frozen=True)
class TorchInstallation:
    version: str
    git_version: str
    cuda_version: str | None
    """None for a CPU build of torch, and for ROCm, which we do not serve."""
    folder: Path

    @property
    def include_dir(self) -> Path:
        return self.folder / "include"

    @property
    def library_dir(self) -> Path:
        return self.folder / "lib"


def cxx_standard(torch_version: str) -> str:
    """The C++ standard that torch's headers need: 20 since 2.14."""
    major, minor = re.match(r"(\d+)\.(\d+)", torch_version).groups()
    return "c++20" if (int(major), int(minor)) >= (2, 14) else "c++17"


def installed_torch() -> TorchInstallation:
    """Imports torch. Raises BuildError where its C++ headers are missing."""
    import torch

    found = TorchInstallation(
        version=str(torch.__version__),
        git_version=str(torch.version.git_version),
        cuda_version=None if getattr(torch.version, "hip", None) else torch.version.cuda,
        folder=Path(torch.__file__).resolve().parent,
    )
    header = found.include_dir / "c10" / "core" / "Allocator.h"
    if not header.is_file():
        raise BuildError(describe("build", "torch", str(found.folder), f"must have the header {header.name}",
                                  "Install torch from a wheel or a conda package, which have its C++ headers."))
    return found


def find_compiler() -> Compiler | None:
    """The compiler that CXX names, else g++; None when it cannot be run."""
    path = shutil.which(environment.compiler().split()[0])
    if path is None:
        return None
    try:
        answer = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return Compiler(path, answer.stdout.partition("\n")[0].strip())


def python_include_dir() -> Path:
    """Raises BuildError where Python's C headers are not installed."""
    folder = Path(sysconfig.get_path("include"))
    if not (folder / "Python.h").is_file():
        raise BuildError(describe("build", "python_headers", str(folder), "must have Python.h",
                                  "Install your distribution's python3-dev (or python3-devel) package."))
    return folder


def find_cuda_headers(wanted: str) -> CudaHeaders | None:
    """The headers nearest to CUDA version `wanted` ("13.0"): of the same major version, and of the same minor one
    if there are such, complete sets first. The runtime's ABI is stable within a major version.
    """
    numbers = [int(part) for part in wanted.split(".")]
    candidates = [headers for folder in _cuda_folders(numbers[0]) if (headers := _read_headers(folder)) is not None]
    same_major = [headers for headers in candidates if headers.version[0] == numbers[0]]
    # sorted() is stable: among equals the order of _cuda_folders counts.
    ranked = sorted(same_major, key=lambda headers: (headers.version[1] != numbers[1], not headers.is_complete))
    return ranked[0] if ranked else None


def _cuda_folders(major: int) -> list[Path]:
    """Where CUDA headers may be: a named toolkit, the nvidia wheels, a toolkit on the path, the usual place."""
    folders = []
    home = environment.cuda_home()
    if home is not None:
        folders.append(home / "include")
    for site in dict.fromkeys((sysconfig.get_path("purelib"), sysconfig.get_path("platlib"))):
        folders += [Path(site, "nvidia", f"cu{major}", "include"), Path(site, "nvidia", "cuda_runtime", "include")]
    nvcc = shutil.which("nvcc")
    if nvcc is not None:
        folders.append(Path(nvcc).resolve().parent.parent / "include")
    folders += [Path("/usr/local/cuda/include"), Path(f"/usr/local/cuda-{major}/include"), Path("/usr/include")]
    return folders


def _read_headers(folder: Path) -> CudaHeaders | None:
    try:
        text = (folder / "cuda_runtime_api.h").read_text(errors="replace")
    except OSError:
        return None
    number = re.search(r"#define\s+CUDART_VERSION\s+(\d+)", text)
    if number is None:
        return None
    version = int(number.group(1))
    return CudaHeaders(folder, (version // 1000, version % 1000 // 10), (folder / _HOST_DEFINES).is_file())
