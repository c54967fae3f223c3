"""Which stream freed which part of a shared space last, against a plain list of pages."""

from __future__ import annotations

import numpy as np
import pytest

from stalloc_accel import _core

PAGE = 64 << 10
NUM_ROLES = 3


class Pages:
    """Every page by itself."""

    def __init__(self, num_pages: int) -> None:
        self.numbers = np.zeros((NUM_ROLES, num_pages), np.int64)

    @staticmethod
    def span(offset: int, size: int) -> slice:
        return slice(offset // PAGE, (offset + size - 1) // PAGE + 1)

    def note(self, offset: int, size: int, role: int, number: int) -> None:
        pages = self.numbers[role, self.span(offset, size)]
        np.maximum(pages, number, out=pages)

    def latest_foreign(self, offset: int, size: int, role: int, known: int) -> int:
        others = [other for other in range(NUM_ROLES) if other != role]
        return max(int(self.numbers[others, self.span(offset, size)].max()), known)


@pytest.mark.parametrize("num_pages", [1, 63, 64, 65, 700])
def test_it_tells_what_a_list_of_pages_tells(seed: int, num_pages: int) -> None:
    random = np.random.default_rng([seed, num_pages])
    size_bytes = num_pages * PAGE - int(random.integers(PAGE))
    frees, pages, number = _core.LastFrees(size_bytes, NUM_ROLES), Pages(num_pages), 1
    for _ in range(1500):
        offset = int(random.integers(size_bytes))
        size = 1 + int((size_bytes - offset - 1) * random.random() ** random.integers(1, 6))
        role = int(random.integers(NUM_ROLES))
        number += int(random.integers(3))
        late = max(1, number - int(random.integers(4)))  # a free that is noted after others that came later
        frees.note(offset, size, role, late)
        pages.note(offset, size, role, late)
        offset = int(random.integers(size_bytes))
        asked = (offset, 1 + int(random.integers(size_bytes - offset)), int(random.integers(NUM_ROLES)))
        known = int(random.choice([0, number // 2, number - 1, number + 1]))
        assert frees.latest_foreign(*asked, known=max(known, 0)) == pages.latest_foreign(*asked, max(known, 0))
