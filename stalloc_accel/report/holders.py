"""Who holds the memory: blocks by the line of the program that asked for them."""

from __future__ import annotations

import dataclasses
import numpy as np

from stalloc_accel.snapshot import Snapshot

NO_STACK = "(no call stack was recorded)"
BACKWARD = "backward pass (autograd's thread)"
_TORCH_PARTS = ("site-packages/torch/", "dist-packages/torch/", "/torch/nn/modules/", "/torch/optim/", "/torch/autograd/",
                "/torch/utils/", "/torch/_dynamo/")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Holder:
    place: str
    size_bytes: int
    num_blocks: int
    largest_bytes: int


def holders_of(snapshot: Snapshot | None, stack: np.ndarray, size: np.ndarray, limit: int = 20) -> list[Holder]:
    """The places that hold most, largest first. One entry a block in `stack` and `size`."""
    if len(size) == 0:
        return []
    stacks, inverse = np.unique(stack, return_inverse=True)
    places = [_place(snapshot, int(index)) for index in stacks]
    names = {name: i for i, name in enumerate(dict.fromkeys(places))}
    group = np.array([names[place] for place in places])[inverse]
    total = np.bincount(group, size, len(names)).astype(np.int64)
    count = np.bincount(group, minlength=len(names))
    largest = np.zeros(len(names), np.int64)
    np.maximum.at(largest, group, size)
    listed = [Holder(place=name, size_bytes=int(total[i]), num_blocks=int(count[i]), largest_bytes=int(largest[i]))
              for name, i in names.items()]
    return sorted(listed, key=lambda holder: -holder.size_bytes)[:limit]


def _place(snapshot: Snapshot | None, stack: int) -> str:
    frames = snapshot.stack(stack) if snapshot is not None else []
    if not frames:
        return NO_STACK
    lines = [frame for frame in frames if _is_program(frame)]
    # The user's own line says more than the library's that it calls.
    frame = next((frame for frame in lines if "-packages/" not in frame[0]), lines[0] if lines else None)
    if frame is not None:
        filename, line, function = frame
        return f"{filename}:{line} {function}"
    names = [function for _, _, function in frames]
    if any("autograd::Engine" in name for name in names):
        node = next((name for name in names if "Backward" in name and "::apply" in name), None)
        return BACKWARD if node is None else f"{BACKWARD}: {node.split('(')[0]}"
    filename, line, function = next((frame for frame in frames if frame[0].endswith(".py")), frames[0])
    return f"{filename}:{line} {function}"


def _is_program(frame: tuple[str, int, str]) -> bool:
    """A line of Python that is neither torch's nor the interpreter's."""
    filename, _, _ = frame
    is_python = filename.endswith((".py", ".ipynb")) or filename.startswith(("<ipython", "<stdin")) or "ipykernel" in filename
    return is_python and not any(part in filename for part in _TORCH_PARTS)
