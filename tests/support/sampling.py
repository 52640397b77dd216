"""Which sets of a test's parameters `make test` leaves to `make test-all`."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Sequence
from typing import Any


def left_out(group: Sequence[Any], count: int) -> list[Any]:
    """Return all but ``count`` tests, whose parameters take as many values as they can.

    Args:
        group: A test function with each of its sets of parameters (pytest's items).
        count: How many stay.
    """
    # Neighbors are often alike, so the order is another one, but the same each time.
    left = sorted(group, key=lambda item: zlib.crc32(item.name.encode()))
    uses = Counter[tuple[str, int]]()
    for _ in range(min(count, len(group))):
        chosen = min(left, key=lambda item: sorted(uses[v] for v in item.callspec.indices.items()))
        uses.update(chosen.callspec.indices.items())
        left.remove(chosen)
    return left
