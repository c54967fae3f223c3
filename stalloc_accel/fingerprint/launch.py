"""Fields that are known before there is a model: versions, device, flags, and how the process was launched."""

from __future__ import annotations

import glob
import hashlib
import importlib.metadata
import os
import platform
import stat
import sys
from collections.abc import Iterator
from typing import Any

from stalloc_accel import environment
from stalloc_accel.config import StallocConfig
from stalloc_accel.fingerprint.key import Fields, Key, flatten, make_key, read

# Installed, imported or not: whether something is imported depends on when it is asked.
_PACKAGES = ("torch", "deepspeed", "transformers", "accelerate", "peft", "triton", "flash-attn", "liger-kernel",
             "bitsandbytes", "torchao", "xformers", "transformer-engine", "apex")
# Where our own files go and how much we say never changes an allocation; the backend has a field as it is resolved.
_SILENT_SETTINGS = frozenset({"enabled", "backend", "cache", "cache_dir", "summary_file", "log_level"})
_CONFIG_ENDS = (".json", ".yaml", ".yml", ".toml")
_MAX_SCRIPT_BYTES = 16 << 20
_MAX_CONFIG_BYTES = 4 << 20


def version_fields(backend: str) -> Fields:
    """Versions, device kind and torch's flags. `backend` is "cuda" or "cpu"; call it once torch is imported."""
    fields = _installed_versions()
    fields["device.backend"] = backend
    torch = sys.modules.get("torch")
    if torch is None:
        return fields
    fields["version.torch_git"] = read(lambda: torch.version.git_version)
    fields["version.cuda"] = read(lambda: torch.version.cuda)
    fields["version.hip"] = read(lambda: torch.version.hip)
    fields.update(_cuda_fields(torch) if backend == "cuda" else _cpu_fields(torch))
    fields.update(_flag_fields(torch))
    fields.update({f"environment.{name}": value for name, value in environment.allocator_settings().items()})
    return fields


def _installed_versions() -> Fields:
    fields: Fields = {"version.python": ".".join(platform.python_version_tuple()[:2])}
    for name in _PACKAGES:
        try:
            fields[f"version.{name}"] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return fields


def _cuda_fields(torch: Any) -> Fields:
    properties = read(lambda: torch.cuda.get_device_properties(torch.cuda.current_device()))
    return {
        "device.name": read(lambda: properties.name),
        "device.capability": read(lambda: f"{properties.major}.{properties.minor}"),
        # In GiB: the bytes that a driver reports differ a little between its versions.
        "device.total_gib": read(lambda: round(properties.total_memory / (1 << 30))),
        "device.multiprocessors": read(lambda: properties.multi_processor_count),
        "version.cudnn": read(lambda: torch.backends.cudnn.version()),
        "version.nccl": read(lambda: ".".join(str(part) for part in torch.cuda.nccl.version())),
    }


def _cpu_fields(torch: Any) -> Fields:
    # The kernels' scratch memory depends on the threads and on the instruction set.
    return {
        "device.machine": platform.machine(),
        "device.capability": read(lambda: torch.backends.cpu.get_cpu_capability()),
        "device.threads": read(lambda: torch.get_num_threads()),
    }


def _flag_fields(torch: Any) -> Fields:
    flags = {
        "deterministic": lambda: torch.are_deterministic_algorithms_enabled(),
        "cudnn_benchmark": lambda: torch.backends.cudnn.benchmark,
        "cudnn_deterministic": lambda: torch.backends.cudnn.deterministic,
        "matmul_precision": lambda: torch.get_float32_matmul_precision(),
        "flash_sdp": lambda: torch.backends.cuda.flash_sdp_enabled(),
        "memory_efficient_sdp": lambda: torch.backends.cuda.mem_efficient_sdp_enabled(),
        "math_sdp": lambda: torch.backends.cuda.math_sdp_enabled(),
        "cudnn_sdp": lambda: torch.backends.cuda.cudnn_sdp_enabled(),
        "default_dtype": lambda: str(torch.get_default_dtype()),
    }
    return {f"flag.{name}": read(get) for name, get in flags.items()}


def config_fields(config: StallocConfig) -> Fields:
    """Our settings that change a plan. Where files go and how much is said do not count."""
    settings = {name: getattr(config, name) for name in config.__dataclass_fields__ if name not in _SILENT_SETTINGS}
    return flatten("config", settings)


def launch_key(config: StallocConfig, backend: str) -> Key:
    """Names a launch before the model exists: command line, contents of script and settings, versions, rank.

    Touches neither torch nor the device, since it runs inside `import torch`, where a driver that is woken would
    break a later fork. It only proposes a plan: what it cannot see (data, imported modules) the model key decides.
    """
    fields = _installed_versions()
    fields["device.backend"] = backend
    if backend == "cuda":
        fields["device.models"] = _cuda_device_models()
    fields.update({f"environment.{name}": value for name, value in environment.allocator_settings().items()})
    fields["launch.arguments"] = [_printable(argument) for argument in sys.argv[1:]]
    fields.update(_script_fields())
    for name, text in _mentioned_configs():
        fields[f"launch.file.{name}"] = text
    fields["launch.visible_devices"] = environment.num_visible_devices()
    return make_key(fields, rank_fields(), config_fields(config), _host_settings())


def rank_fields() -> Fields:
    """This process among those of its launch: what ranks share out among them is not the same in each."""
    return {"launch.rank": environment.rank(), "launch.world_size": environment.world_size()}


def _printable(argument: str) -> str:
    # Arguments that are no UTF-8 carry lone surrogates, which JSON escapes but a file cannot hold.
    return argument.encode("utf-8", "backslashreplace").decode()


def _script_fields() -> Fields:
    path = sys.argv[0] if sys.argv else ""
    if path in ("-c", "-m"):
        # -m only while the module is being found. What follows the option stands before the arguments.
        target = _printable(getattr(sys, "orig_argv", sys.argv)[-len(sys.argv)])
        return {"launch.script": path, "launch.script.contents": _digest(target.encode())}
    contents = _file_contents(path, _MAX_SCRIPT_BYTES)
    return {"launch.script": os.path.basename(_printable(path)),
            "launch.script.contents": None if contents is None else _digest(contents)}


def _mentioned_configs() -> Iterator[tuple[str, str]]:
    """(position, digest) of each settings file that the arguments name, as `--key file`, `--key=file` or alone."""
    for index, argument in enumerate(sys.argv[1:]):
        path = argument.split("=", 1)[1] if argument.startswith("-") and "=" in argument else argument
        if path.lower().endswith(_CONFIG_ENDS):
            contents = _file_contents(path, _MAX_CONFIG_BYTES)
            if contents is not None:
                yield str(index), _digest(contents)


def _host_settings() -> Fields:
    """A launcher's own variables; of a variable that names a settings file, the contents."""
    fields: Fields = {}
    for name, value in environment.launcher_settings().items():
        contents = _file_contents(value, _MAX_CONFIG_BYTES) if value.lower().endswith(_CONFIG_ENDS) else None
        fields[f"environment.{name}"] = _printable(value) if contents is None else _digest(contents)
    return fields


def _file_contents(path: str, max_bytes: int) -> bytes | None:
    """The bytes of a plain file of bounded size; None for anything else, devices and pipes above all."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError):  # ValueError: a NUL in the name
        return None
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > max_bytes:
            return None
        try:
            return file.read(max_bytes)
        except OSError:
            return None


def _digest(contents: bytes) -> str:
    return f"sha256:{hashlib.sha256(contents).hexdigest()[:32]}"


def _cuda_device_models() -> list[str]:
    """Models of the machine's NVIDIA devices as the kernel driver lists them; empty where it lists none."""
    models = set()
    for path in glob.glob("/proc/driver/nvidia/gpus/*/information"):
        text = (_file_contents(path, 1 << 16) or b"").decode("ascii", "replace")
        models.update(line.split(":", 1)[1].strip() for line in text.splitlines() if line.startswith("Model:"))
    return sorted(models)
