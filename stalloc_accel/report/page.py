"""One self-contained HTML page about a device's memory."""

from __future__ import annotations

import base64
import html
import json
from pathlib import Path
from typing import Any

import numpy as np

from stalloc_accel.report.analysis import Analysis
from stalloc_accel.report.lifetimes import Lifetimes
from stalloc_accel.report.page_template import PAGE

MAX_POINTS = 3000  # of each line
MAX_BOXES = 120_000  # of each picture; the smallest blocks are left out beyond
_UNIT = 512  # addresses and sizes are given in it, so that 32 bits reach 2 TiB


def render_page(analysis: Analysis) -> str:
    """Plain HTML with its data and script inside; needs no network and no library."""
    facts = analysis.to_json()
    data: dict[str, Any] = {"facts": facts, "lines": _lines(analysis), "pictures": []}
    if analysis.lives is not None:
        data["pictures"] = [picture for picture in (_traced(analysis), _planned(analysis)) if picture is not None]
    # "</" would end the script element from inside a text.
    payload = json.dumps(data, separators=(",", ":")).replace("</", "<\\/").replace("\u2028", " ").replace("\u2029", " ")
    return PAGE.replace("@TITLE@", html.escape(f"Memory of {analysis.name}, device {analysis.device_index}")).replace("@DATA@", payload)


def write_page(analysis: Analysis, path: Path) -> None:
    path.write_text(render_page(analysis), encoding="utf-8")


def _lines(analysis: Analysis) -> dict[str, Any]:
    """The largest value of each bin of events, so that no peak is lost."""
    count = len(analysis.allocated_over_time)
    if count == 0:
        return {"num_events": 0, "events": [], "allocated": [], "reserved": [], "planned": 0, "steps": []}
    edges = np.unique(np.linspace(0, count, min(count, MAX_POINTS) + 1).astype(np.int64))[:-1]
    return {"num_events": count, "events": edges.tolist(),
            "allocated": np.maximum.reduceat(analysis.allocated_over_time, edges).tolist(),
            "reserved": np.maximum.reduceat(analysis.reserved_over_time, edges).tolist(),
            "planned": analysis.plan.reserved_bytes if analysis.plan is not None else 0}


def _traced(analysis: Analysis) -> dict[str, Any]:
    lives = analysis.lives
    offset, total = _compacted(lives.address, lives.size)
    return _picture("as it was, address over time", lives, np.arange(len(lives)), offset, total)


def _planned(analysis: Analysis) -> dict[str, Any] | None:
    plan = analysis.plan
    if plan is None or len(plan.blocks) == 0:
        return None
    return _picture("as planned, address over time", analysis.lives, plan.blocks, plan.offset, plan.reserved_bytes)


def _compacted(address: np.ndarray, size: np.ndarray) -> tuple[np.ndarray, int]:
    """Addresses without the holes between the ranges that any block ever touched."""
    begin = address.astype(np.int64)
    order = np.argsort(begin, kind="stable")
    ends = np.maximum.accumulate((begin + size)[order])
    starts = begin[order]
    hole = np.zeros(len(order), np.int64)
    if len(order):
        gap = np.maximum(starts[1:] - ends[:-1], 0)
        # Neighbours in a segment keep their distance; only what no block bridges for 2 MiB is no part of one.
        hole[1:] = np.where(gap > 2 << 20, gap - (2 << 20), 0)
        hole[0] = starts[0]
    offset = np.empty(len(order), np.int64)
    offset[order] = starts - np.cumsum(hole)
    return offset, int((offset + size).max(initial=0))


def _picture(title: str, lives: Lifetimes, blocks: np.ndarray, offset: np.ndarray, total: int) -> dict[str, Any]:
    size = lives.size[blocks]
    if len(blocks) > MAX_BOXES:
        kept = np.sort(np.argsort(-size, kind="stable")[:MAX_BOXES])
        blocks, offset, size = blocks[kept], offset[kept], size[kept]
    columns = (lives.born[blocks], np.minimum(lives.done[blocks], lives.num_events), offset // _UNIT, size // _UNIT)
    return {"title": title, "total": total, "left_out": len(lives) - len(blocks),
            "columns": [_packed(column) for column in columns]}


def _packed(column: np.ndarray) -> str:
    return base64.b64encode(np.clip(column, 0, 2**32 - 1).astype("<u4").tobytes()).decode()
