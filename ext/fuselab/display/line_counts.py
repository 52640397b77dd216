"""What was seen of a kernel's lines while it ran, in words and as a column beside them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from fuselab.display import words
from fuselab.display.kernel_text import extent_of

if TYPE_CHECKING:
    from fusec.timing.line_counts import LineCount, LineCounts

MOST_NAMED = 3  # lines in a sentence
FOR_MEMORY = "waits for memory"  # as Nsight Compute's reason is called
LEAST = 0.005  # a share below it is no line's worth mentioning


def share_of(line: LineCount | None) -> str:
    """Return a line's share; empty where it hardly has one."""
    return words.share(line.share) if line is not None and line.share >= LEAST else ""


def details_of(line: LineCount, what: str = "time") -> str:
    """Return all that is known of a line: ``42% of the time, mostly waits for memory, 32 MiB``."""
    parts = [f"{words.share(line.share)} of the {what}"]
    if line.waits:
        parts.append(f"mostly {line.waits}")
    if line.instructions >= 0:
        parts.append(f"{words.many(line.instructions)} instructions of warps")
    if line.bytes > 0:
        parts.append(f"{words.size(int(line.bytes))} asked of L2")
    return ", ".join(parts)


def said_of(counts: LineCounts) -> str:
    """Say in a sentence where a kernel's time goes, and how that was seen, or why it was not."""
    if counts.missing:
        return f"time of each line: not available, because {counts.missing}"
    whose = f"{counts.what} of each line"
    most = sorted(counts.lines.items(), key=lambda item: -item[1].share)[:MOST_NAMED]
    named = [f"line {n} {words.share(line.share)}" for n, line in most if line.share >= LEAST]
    if counts.elsewhere >= LEAST:
        named.append(f"outside of them {words.share(counts.elsewhere)}")
    looked = f"seen {counts.samples:,} times by {counts.by}"
    said = f"{whose}: {', '.join(named)} ({looked})"
    if any(line.waits == FOR_MEMORY for line in counts.lines.values()):
        said += "; one that waits for memory waits for what a line before it loads"
    return said


def counted_rows(counts: LineCounts, target: str) -> list[tuple[int, str, str, str]]:
    """Return the kernel's own lines, and others that were seen: number, share, text, more."""
    extent = extent_of(counts.text, target)
    rows = []
    for number, text in enumerate(counts.text.splitlines(), 1):
        share = share_of(line := counts.lines.get(number))
        if extent.first <= number <= extent.last or share:
            more = details_of(line).partition(", ")[2] if line is not None and share else ""
            rows.append((number, share, text, more))
    return rows


def counted_text(counts: LineCounts, target: str) -> list[str]:
    """Return the kernel as text, each line with its share at the left, what it waits for behind."""
    return [
        f"{share:>5} {number:4d}  {text}{f'   <- {more}' if more else ''}".rstrip()
        for number, share, text, more in counted_rows(counts, target)
    ]


def packed_shares(counts: LineCounts, places: Mapping[int, int]) -> str:
    """Write shares for a page: ``24:0.420: 42%:details;...``; empty where none is known.

    Args:
        counts: What was seen.
        places: Lines that are shown, to those of the text that ran.
    """
    found = ((shown, counts.lines.get(ran)) for shown, ran in sorted(places.items()))
    return ";".join(
        f"{number}:{line.share:.3f}:{share_of(line)}:{details_of(line, counts.what)}"
        for number, line in found
        if line is not None and share_of(line)
    )


__all__ = [
    "counted_rows",
    "counted_text",
    "details_of",
    "packed_shares",
    "said_of",
    "share_of",
]
