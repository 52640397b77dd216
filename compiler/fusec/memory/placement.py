"""Where temporaries lie in one block of memory: first fit, by lifetime."""

from __future__ import annotations

from collections.abc import Mapping


def first_fit(
    sizes: Mapping[str, int],
    first: Mapping[str, int],
    last: Mapping[str, int],
    alignment: int,
) -> tuple[dict[str, int], int]:
    """Lay out buffers so that those which are needed at the same time do not overlap.

    Args:
        sizes: Bytes, by name.
        first: The step that needs a buffer first; before all of them where it is left out.
        last: The step that needs it last; likewise.
        alignment: In bytes, of every buffer.

    Returns:
        Offset by name, and the size of the block.
    """
    placed: list[tuple[int, int, str]] = []  # offset, size, name
    total = 0
    for name in sorted(sizes, key=lambda n: (-sizes[n], first.get(n, 0))):
        size = -(-sizes[name] // alignment) * alignment
        begin, end = first.get(name, 0), last.get(name, -1)
        offset = 0
        for start, length, other in sorted(placed):
            disjoint = last.get(other, -1) < begin or end < first.get(other, 0)
            if not disjoint and start < offset + size and offset < start + length:
                offset = start + length
        placed.append((offset, size, name))
        total = max(total, offset + size)
    return {name: offset for offset, _, name in placed}, total


__all__ = ["first_fit"]
