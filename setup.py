"""Builds stalloc_accel._core, the part of the engine that knows neither torch nor CUDA.

The torch part is built on the user's machine by stalloc_accel/extension.py, so the C++ sources ship as the package
stalloc_accel.csrc.
"""

import os
import re
import sys
import sysconfig
from glob import glob
from pathlib import Path

import pybind11
from pybind11.setup_helpers import ParallelCompile
from setuptools import Extension, find_packages, setup
from setuptools.command.build_ext import build_ext


def is_stale(object_path, source_path):
    """True when the source, or a header that the object's dependency file names, is newer than the object."""
    dependencies = Path(object_path).with_suffix(".d")
    if not os.path.exists(object_path) or not dependencies.exists():
        return True
    built_at = os.path.getmtime(object_path)
    rule = dependencies.read_text().replace("\\\n", " ").split(":", 1)[1]
    inputs = [name.replace("\\ ", " ") for name in re.findall(r"(?:\\.|\S)+", rule)] + [__file__]
    return any(not os.path.exists(name) or os.path.getmtime(name) > built_at for name in inputs)


class BuildCore(build_ext):
    """Keeps the objects of earlier builds, editable ones included, so that only what changed is compiled."""

    def run(self):
        self.build_temp = os.path.join("build", f"core-{sysconfig.get_platform()}-{sys.implementation.cache_tag}")
        super().run()


core = Extension(
    "stalloc_accel._core",
    sources=sorted(path for folder in ("core", "runtime", "python") for path in glob(f"csrc/{folder}/*.cpp")),
    depends=sorted(glob("csrc/*/*.h")),
    include_dirs=["csrc"],
    language="c++",
    extra_compile_args=[
        "-std=c++17",
        "-O2",
        "-MMD",
        "-fvisibility=hidden",
        "-Wall",
        "-Wextra",
        "-Wconversion",
        "-isystem",
        pybind11.get_include(),
        *os.environ.get("CORE_CXXFLAGS", "").split(),
    ],
    extra_link_args=["-pthread"],
)

ParallelCompile("CORE_BUILD_JOBS", default=os.cpu_count(), needs_recompile=is_stale).install()
setup(
    packages=find_packages(include=["stalloc_accel", "stalloc_accel.*"]) + ["stalloc_accel.csrc"],
    package_dir={"stalloc_accel.csrc": "csrc"},
    package_data={"stalloc_accel.csrc": ["*/*.h", "*/*.cpp", "torch/cuda_headers/crt/*.h"]},
    ext_modules=[core],
    cmdclass={"build_ext": BuildCore},
)
