"""Slips of people who know what they do, in kernels of many cells: see ``edits``.

Each is a few replacements in a generated text: a limit, a mask, what a sum begins with, a variable
that threads share, what holds for the notebook's sizes alone.  The right ones are what people try
to make a kernel faster.  They are in ``careless_edits.txt``: a name, the group, the cell and which
of its kernels, then what is replaced by what.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from faults.fault import Fault, Group

_SLIP = re.compile(r"^# (?P<name>.+)\n(?P<group>\w+) \| (?P<cell>.+) \| (?P<kernel>\d)\n", re.M)
_CHANGE = re.compile(r"^<<<\n(.*?)\n===\n(.*?)\n?>>>$", re.M | re.S)


@dataclass(frozen=True)
class Slip(Fault):
    """An edit of some cell's kernel.

    Attributes:
        cell: Which: see ``careless_cells``.
        changes: What is replaced by what; each is in the text.
        kernel: Which of the cell's.
    """

    code: str = ""
    cell: str = ""
    changes: tuple[tuple[str, str], ...] = ()
    kernel: int = 0


def _slips() -> tuple[Slip, ...]:
    text = Path(__file__).with_suffix(".txt").read_text(encoding="utf-8")
    heads = list(_SLIP.finditer(text))
    ends = [head.start() for head in heads[1:]] + [len(text)]
    return tuple(
        Slip(
            head["name"],
            cast(Group, head["group"]),
            cell=head["cell"],
            changes=tuple(cast(list[tuple[str, str]], _CHANGE.findall(text[head.end() : end]))),
            kernel=int(head["kernel"]),
        )
        for head, end in zip(heads, ends, strict=True)
    )


SLIPS = _slips()

__all__ = ["SLIPS", "Slip"]
