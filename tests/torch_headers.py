"""C++ headers of released torch versions, and what our CUDA sources say to them.

The headers come from the wheels that pip serves and are kept outside the tree, in the user's cache folder.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from collections import Counter
from pathlib import Path

from stalloc_accel import sources, toolchain

CUDA_RUNTIME = "nvidia-cuda-runtime==13.0.96"

# Virtuals that ForwardingCudaAllocator leaves to their base class on purpose, each with the reason.
LEFT_OUT: dict[str, str] = {}


def cache_dir() -> Path:
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if os.path.isabs(base) else Path.home() / ".cache") / "stalloc-test-headers"


def fetch(requirement: str, member_prefixes: tuple[str, ...]) -> Path:
    """The folder with the named members of a wheel. Raises LookupError where pip serves no such wheel."""
    folder = cache_dir() / re.sub(r"[^\w.]+", "-", requirement)
    if folder.is_dir():
        return folder
    cache_dir().mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache_dir()) as scratch:
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", "-d", scratch]
        done = subprocess.run([*command, requirement], capture_output=True, text=True, timeout=600)
        wheels = list(Path(scratch).glob("*.whl"))
        if done.returncode != 0 or not wheels:
            raise LookupError(f"pip download {requirement}: {done.stderr.strip()[-300:]}")
        with zipfile.ZipFile(wheels[0]) as wheel:
            wanted = [name for name in wheel.namelist() if name.startswith(member_prefixes)]
            wheel.extractall(Path(scratch, "out"), wanted)
        Path(scratch, "out").rename(folder)
    return folder


def torch_include(version: str) -> Path:
    include = fetch(f"torch=={version}", ("torch/include/",)) / "torch" / "include"
    # A CPU wheel has c10's CUDA headers but for this one, which the build makes; it has nothing else in it.
    macros = include / "c10" / "cuda" / "impl" / "cuda_cmake_macros.h"
    if macros.parent.is_dir() and not macros.exists():
        macros.write_text("#pragma once\n#define C10_CUDA_BUILD_SHARED_LIBS\n")
    return include


def cuda_wheel_include() -> Path:
    """CUDA's headers as the nvidia wheels have them: without the folder crt."""
    return fetch(CUDA_RUNTIME, ("nvidia/cu13/include/",)) / "nvidia" / "cu13" / "include"


def compile_cuda_sources(torch: Path, cuda: Path, version: str) -> str:
    """What the compiler complains about when all our CUDA sources are checked as one file; empty when nothing."""
    csrc = sources.csrc_dir()
    with tempfile.TemporaryDirectory() as scratch:
        unit = Path(scratch, "all_cuda.cpp")
        unit.write_text("".join(f'#include "torch/{path.name}"\n' for path in sorted(csrc.glob("torch/cuda_*.cpp"))))
        include = [f"-I{csrc}"]
        for folder in (torch, sysconfig.get_path("include"), cuda, csrc / "torch" / "cuda_headers"):
            include += ["-isystem", str(folder)]
        compiler = toolchain.find_compiler()
        done = subprocess.run(
            [compiler.path, f"-std={toolchain.cxx_standard(version)}", "-fsyntax-only", "-Wall", "-Wextra", "-Wconversion", "-Werror",
             *include, str(unit)],
            capture_output=True, text=True, timeout=600,
        )
    return "" if done.returncode == 0 else done.stderr


def _body(text: str, name: str) -> str:
    """The text between the braces of the class or struct `name`, without comments."""
    text = re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.DOTALL)
    begin = re.search(rf"\b(?:class|struct)\s+(?:\w+\s+)?{name}\s*(?:final\s*)?(?::[^{{;]*)?{{", text)
    if begin is None:
        return ""
    depth, at = 1, begin.end()
    while depth:
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        at += 1
    return text[begin.end() : at]


def virtuals(torch: Path) -> Counter[str]:
    """How many virtual functions of each name the allocator interface of these headers declares."""
    found: Counter[str] = Counter()
    for header, name in (
        ("c10/core/Allocator.h", "Allocator"),
        ("c10/core/CachingDeviceAllocator.h", "DeviceAllocator"),
        ("c10/cuda/CUDACachingAllocator.h", "CUDAAllocator"),
    ):
        body = _body((torch / header).read_text(), name)
        found.update(re.findall(r"\bvirtual\s+[^;{}()~]*?(\w+)\s*\(", body))
    return found


def forwarded() -> Counter[str]:
    """How many virtual functions of each name our class forwards, for any version of torch."""
    text = (sources.csrc_dir() / "torch" / "cuda_forwarding.h").read_text()
    body = re.sub(r"STALLOC_SINCE_\w+\(", " ", _body(text, "ForwardingCudaAllocator"))
    return Counter(re.findall(r"(\w+)\s*\([^;{}]*\)\s*(?:const\s+)?override", body))


def missing(torch: Path) -> list[str]:
    """Virtuals of these headers that are neither forwarded nor left out with a reason."""
    ours = forwarded()
    return sorted(name for name, count in virtuals(torch).items() if ours[name] < count and name not in LEFT_OUT)
