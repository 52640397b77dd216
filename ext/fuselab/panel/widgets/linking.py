"""Which line of the cell each line of a kernel comes from, for the editor."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from fusec.kernel import Kernel

# Beyond this an edit's lines are not followed: it would hold up typing.
MOST_LINES = 1500


def links_of(kernel: Kernel, text: str, file: str = "") -> dict[int, list[int]]:
    """Return which cell lines each line of a text computes.

    Args:
        kernel: Whose text it is; the generated text's lines are known.
        text: The one in the editor; lines of it that the generated text has too keep their links.
        file: The cell's name; lines of other files are left out. All if empty.
    """
    origins = {
        line: sorted({place.line for place in places if not file or place.file == file})
        for line, places in kernel.generated.origins.items()
    }
    own = kernel.generated.text
    if text == own:
        return {line: places for line, places in origins.items() if places}
    before, after = own.splitlines(), text.splitlines()
    if max(len(before), len(after)) > MOST_LINES:
        return {}
    found = {}
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    for tag, i1, i2, j1, j2 in matcher.get_opcodes():
        # A line that was changed in place still computes what it did; a new one nobody knows.
        if tag == "equal" or (tag == "replace" and i2 - i1 == j2 - j1):
            for step in range(i2 - i1):
                if places := origins.get(i1 + step + 1):
                    found[j1 + step + 1] = places
    return found


def same_lines(before: str, after: str) -> dict[int, int]:
    """Return the lines of a text that an earlier one has too: its numbers to the earlier one's."""
    if before == after:
        return {n: n for n in range(1, after.count("\n") + 2)}
    old, new = before.splitlines(), after.splitlines()
    if max(len(old), len(new)) > MOST_LINES:
        return {}
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    blocks = matcher.get_matching_blocks()
    return {block.b + n + 1: block.a + n + 1 for block in blocks for n in range(block.size)}


def packed(links: Mapping[int, Sequence[int]]) -> str:
    """Write links for the page, lines of the same origin as one: ``21-24:3 25:3,4``.

    As a list each would be several lines of a saved notebook.
    """
    runs: list[tuple[int, int, str]] = []
    for line, places in sorted(links.items()):
        to = ",".join(map(str, places))
        if runs and runs[-1][1:] == (line - 1, to):
            runs[-1] = (runs[-1][0], line, to)
        else:
            runs.append((line, line, to))
    return " ".join(f"{a}:{to}" if a == b else f"{a}-{b}:{to}" for a, b, to in runs)


def cell_lines(cell: Any, kernels: list[Kernel]) -> list[list[object]]:
    """Return the user's lines to show beside a kernel: number and text each.

    A cell's are all shown, numbered as its gutter has them; of a function in a file only those
    that became kernels are, for nobody knows where the rest is.

    Args:
        cell: A ``FusedCell`` or what stands for it.
        kernels: All of its kernels.
    """
    if getattr(cell, "plan", None) is not None:
        whole = str(getattr(cell.plan, "text", "")) or f"%%fuse\n{cell.source}"
        lines = whole.splitlines()
        return [[number, line] for number, line in enumerate(lines, 1)]
    known: dict[int, str] = {}
    for kernel in kernels:
        for places in kernel.generated.origins.values():
            known |= {place.line: place.text for place in places}
    return [[number, known[number]] for number in sorted(known)]
