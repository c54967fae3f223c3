"""The device that a session looks after: its engine, put in front of torch's allocator, and its memory."""

from __future__ import annotations

import dataclasses
import sys
from typing import Any

from stalloc_accel import environment
from stalloc_accel.memory import CpuMemory, CudaMemory, DeviceMemory


@dataclasses.dataclass(frozen=True, kw_only=True)
class Device:
    engine: Any
    memory: DeviceMemory
    is_early: bool
    """The program has allocated nothing on it so far: a plan that begins with the first allocation can be used."""


def take_device(backend: str) -> Device:
    """The device that this rank trains on. `backend`: auto, cuda or cpu.

    Raises BuildError, RuntimeError or ValueError where there is no allocator of it to be taken.
    """
    from stalloc_accel import extension
    backend = backend if backend != "auto" else _present_backend()
    module = extension.load(backend)
    module.install()
    device = _cuda_device(module) if backend == "cuda" else _cpu_device(module)
    device.engine.set_debug(environment.is_debug())
    return device


def _cpu_device(module: Any) -> Device:
    engine = module.engine(0)
    return Device(engine=engine, memory=CpuMemory(engine), is_early=_is_torch_importing())


def _is_torch_importing() -> bool:
    """Whether we were started by torch's own import, before the program could make a tensor."""
    return bool(getattr(getattr(sys.modules.get("torch"), "__spec__", None), "_initializing", False))


def _cuda_device(module: Any) -> Device:
    import torch
    is_early = not torch.cuda.is_initialized()
    index = _cuda_index(is_early)
    return Device(engine=module.engine(index), memory=CudaMemory(index, module), is_early=is_early)


def _present_backend() -> str:
    """Asks NVML where torch can, so that no CUDA context is made and forks stay possible."""
    import torch
    return "cuda" if torch.version.cuda is not None and torch.cuda.device_count() > 0 else "cpu"


def _cuda_index(is_early: bool) -> int:
    """The current device; before CUDA is initialised the one that launchers mean."""
    import torch
    if not is_early:
        return torch.cuda.current_device()
    return environment.local_rank() % max(torch.cuda.device_count(), 1)
