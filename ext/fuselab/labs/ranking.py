"""Ranks a class's open kernels: by bytes, kernels and share of the machine's own copy speed.

Every answer is judged anew, one after the other on this machine.  Shares within a twentieth of each
other are the same: a machine's noise is no merit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fuselab.errors import FuselabError
from fuselab.judge.engine import judge_for_points
from fuselab.judge.verdict import SHARE
from fuselab.labs.catalog import find_task
from fuselab.labs.progress import read_hand_in

TASKS = ("lab14.gates", "lab14.router")
SAME = 0.05  # of a share


@dataclass(frozen=True)
class StudentEntry:
    """One student's answers to the open tasks.

    Attributes:
        student: Who.
        bytes: What the tensor code moves; None where it is not right.
        kernels: How many kernels and calls it is; None where it is not right.
        share: Of a copy's speed, of the kernel by hand; None where it is not right.
    """

    student: str
    bytes: int | None = None
    kernels: int | None = None
    share: float | None = None

    @property
    def key(self) -> tuple[int, int, int]:
        """What entries are sorted by: least bytes, fewest kernels, largest share (in steps)."""
        most = 1 << 62
        steps = round((self.share or 0.0) / SAME) if self.share is not None else -1
        return (
            self.bytes if self.bytes is not None else most,
            self.kernels if self.kernels is not None else most,
            -steps,
        )


def entry(path: Path) -> StudentEntry | None:
    """Judge a hand-in's open answers; None if it is no hand-in, or has none.

    Raises:
        NotJudged: The machine left one no time.
    """
    try:
        student, answers = read_hand_in(path)
    except (FuselabError, OSError):
        return None
    values: dict[str, float] = {}
    for name in TASKS:
        if name not in answers:
            continue
        verdict = judge_for_points(find_task(name), answers[name])
        for each in verdict.findings:
            if each.value is not None:
                values[each.what] = each.value
    if not values:
        return None
    moved, kernels = values.get("bytes"), values.get("kernels")
    return StudentEntry(
        student,
        None if moved is None else int(moved),
        None if kernels is None else int(kernels + values.get("calls", 0)),
        values.get(SHARE),
    )


def rank_folder(folder: Path) -> list[tuple[int, StudentEntry]]:
    """Return the entries of a folder's hand-ins with their places; equal ones share a place."""
    found = [each for path in sorted(folder.glob("*.json")) if (each := entry(path)) is not None]
    return ranked(found)


def ranked(entries: Sequence[StudentEntry]) -> list[tuple[int, StudentEntry]]:
    """Return entries in order, with their places."""
    ordered = sorted(entries, key=lambda each: each.key)
    return [(1 + sum(o.key < each.key for o in ordered), each) for each in ordered]


def as_text(places: Sequence[tuple[int, StudentEntry]]) -> str:
    """Return a ranking as a table."""
    lines = [("place", "student", "bytes", "kernels", "share of a copy")]
    for place, each in places:
        lines.append(
            (
                str(place),
                each.student,
                "-" if each.bytes is None else f"{each.bytes:,}",
                "-" if each.kernels is None else str(each.kernels),
                "-" if each.share is None else f"{each.share:.0%}",
            )
        )
    widths = [max(len(line[n]) for line in lines) for n in range(5)]
    shown = ["  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)) for line in lines]
    return "".join(f"{line.rstrip()}\n" for line in shown)


__all__ = ["StudentEntry", "as_text", "entry", "rank_folder", "ranked"]
