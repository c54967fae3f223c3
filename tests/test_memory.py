"""What the session reads out of torch's snapshot of its segments."""

import pytest

from stalloc_accel.memory import _pinned_bytes

MIB = 1 << 20


def segment(*blocks: tuple[int, int, str], total_mib: int = 100, kind: str = "large", is_expandable: bool = True) -> dict:
    return {"address": 1 << 40, "total_size": total_mib * MIB, "segment_type": kind, "is_expandable": is_expandable,
            "blocks": [{"address": (1 << 40) + at * MIB, "size": size * MIB, "state": state} for at, size, state in blocks]}


LIVE, FREE = "active_allocated", "inactive"


@pytest.mark.parametrize(("found", "pages_mib"), [
    (segment((0, 100, FREE)), 0),
    (segment((0, 5, LIVE), (5, 95, FREE)), 20),
    (segment((0, 15, FREE), (15, 10, LIVE), (25, 75, FREE)), 40),
    (segment((0, 5, LIVE), (5, 5, LIVE), (10, 15, LIVE), (25, 50, FREE), (75, 25, LIVE)), 80),
    (segment((0, 30, LIVE), total_mib=30), 30),
    (segment((0, 1, LIVE), (1, 3, FREE), (4, 1, LIVE), total_mib=6, kind="small"), 4),
    (segment((0, 5, LIVE), (5, 95, FREE), is_expandable=False), 100),
    (segment((0, 100, FREE), is_expandable=False), 0),
])
def test_pages_and_segments_in_which_something_lives_are_pinned(found, pages_mib):
    assert _pinned_bytes(found, frozenset()) == pages_mib * MIB


def test_blocks_that_are_about_to_be_freed_pin_nothing():
    found = segment((0, 5, LIVE), (5, 35, FREE), (40, 20, LIVE), (60, 40, FREE))
    assert _pinned_bytes(found, frozenset({(1 << 40) + 40 * MIB})) == 20 * MIB
