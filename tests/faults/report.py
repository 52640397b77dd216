"""What became of faults, as a table that a reader understands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Outcome:
    """What became of one fault.

    Attributes:
        kind: The table's section.
        name: The fault.
        times: How often it was done.
        survived: How often the notebook went on with right results.
        saw: What the user read of it.
        good: Whether it ended as it should, every time.
    """

    kind: str
    name: str
    times: int
    survived: int
    saw: str
    good: bool


def table(outcomes: Sequence[Outcome], *, markdown: bool = False) -> str:
    """Return outcomes as lines, a section a kind, and their count."""
    lines: list[str] = []
    kind = ""
    width = max((len(each.name) for each in outcomes), default=0)
    for each in outcomes:
        if each.kind != kind:
            kind = each.kind
            lines += ["", f"{kind[0].upper()}{kind[1:]}", ""]
            if markdown:
                lines += ["| fault | times | survived | what the user saw |", "|---|---|---|---|"]
        mark = "" if each.good else "NOT AS IT SHOULD BE: "
        counts = f"{each.survived} of {each.times}"
        if markdown:
            lines.append(f"| {each.name} | {each.times} | {each.survived} | {mark}{each.saw} |")
        else:
            lines.append(f"  {each.name:{width}}  {counts:>9}  {mark}{each.saw}")
    good = sum(each.good for each in outcomes)
    times = sum(each.times for each in outcomes)
    survived = sum(each.survived for each in outcomes)
    lines += [
        "",
        f"{good} of {len(outcomes)} faults end as they should; {survived} of {times} times"
        " the notebook went on.",
    ]
    return "\n".join(lines).strip()
