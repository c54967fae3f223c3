"""Where the C++ sources are, for building the torch part on this machine."""

from __future__ import annotations

from pathlib import Path


def csrc_dir() -> Path:
    """The folder that holds core/, runtime/, python/ and torch/.

    An installed wheel has it inside the package; a checkout has it beside the package.
    """
    package = Path(__file__).resolve().parent
    for folder in (package / "csrc", package.parent / "csrc"):
        if (folder / "core").is_dir():
            return folder
    raise FileNotFoundError(
        f"C++ sources not found: package={package}, csrc/ must be inside or beside it. Reinstall stalloc-accel."
    )
