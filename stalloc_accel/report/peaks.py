"""Peaks as the JSON figures name them."""

from __future__ import annotations

from typing import Any

from stalloc_accel.memory import Peaks


def peaks_to_json(peaks: Peaks) -> dict[str, Any]:
    return {"allocated_peak_bytes": peaks.allocated_bytes, "reserved_peak_bytes": peaks.reserved_bytes,
            "efficiency": peaks.efficiency}
