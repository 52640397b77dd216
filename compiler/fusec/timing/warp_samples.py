"""Where the warps of a GPU were, instruction by instruction, as Nsight Compute prints it."""

from __future__ import annotations

import csv
import io
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fusec.timing.line_counts import FEWEST, LineCount, LineCounts

SECTOR = 32  # bytes that are moved at once
# What a warp waits for, by Nsight Compute's names. "selected" and "not_selected" wait for nothing.
WAITS = {
    "long_sb": "waits for memory",
    "short_sb": "waits for shared memory or a special function",
    "lg": "waits for room in the queue to memory",
    "mio": "waits for room in the queue to shared memory",
    "tex": "waits for room in the queue to textures",
    "barrier": "waits at a barrier",
    "gmma": "waits for a tensor core",
    "math": "waits for an arithmetic unit",
    "wait": "waits the fixed time of the instruction before",
    "membar": "waits for memory to be in order",
    "drain": "waits for what it writes",
    "branch_resolve": "waits for a branch",
    "branch_resolving": "waits for a branch",
    "no_inst": "waits for its instructions",
    "no_instructions": "waits for its instructions",
    "imc": "waits for constants",
    "sleep": "sleeps",
    "sleeping": "sleeps",
    "dispatch": "waits to be dispatched",
    "selected": "computes",
    "not_selected": "waits for its turn",
}
_LEAST_SAME = 0.95  # of the instructions: the binary is the one that ran


@dataclass(frozen=True)
class Instruction:
    """What was seen of an instruction.

    Attributes:
        place: Its distance from the first one, in bytes.
        operation: What it does: ``FADD``.
        samples: How often a warp was there.
        waits: How often for which reason.
        executed: By warps.
        sectors: Of 32 bytes, asked of L2.
    """

    place: int
    operation: str
    samples: int
    waits: Mapping[str, int] = field(default_factory=dict)
    executed: float = 0.0
    sectors: float = 0.0


def read_instructions(said: str) -> list[list[Instruction]]:
    """Return what ``ncu --page source --print-source sass --csv`` says, a list a start."""
    blocks: list[list[Instruction]] = []
    head: list[str] = []
    first = 0
    for row in csv.reader(io.StringIO(said)):
        if "Address" in row and "Source" in row:
            head, first = row, -1
            blocks.append([])
            continue
        if not head or len(row) != len(head):
            continue
        values = dict(zip(reversed(head), reversed(row), strict=True))  # the first of a name counts
        try:
            address = int(values["Address"], 0)
        except ValueError:
            continue
        first = address if first < 0 else first
        words = [word for word in values["Source"].split() if not word.startswith("@")]
        blocks[-1].append(
            Instruction(
                address - first,
                words[0].rstrip(";") if words else "",
                int(_number(values.get("Warp Stall Sampling (All Samples)", ""))),
                {
                    name.removeprefix("stall_"): int(_number(value))
                    for name, value in values.items()
                    if name.startswith("stall_") and "Not Issued" not in name and _number(value)
                },
                _number(values.get("Instructions Executed", "")),
                _number(values.get("L2 Theoretical Sectors Global", "")),
            )
        )
    return [block for block in blocks if block]


def _number(text: str) -> float:
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return 0.0


def seen_lines(
    text: str,
    blocks: Sequence[Sequence[Instruction]],
    binaries: Sequence[Mapping[int, tuple[str, int]]],
) -> LineCounts:
    """Return what was seen of the lines of a kernel's text, all of its starts together.

    Args:
        text: The text.
        blocks: The instructions of each start.
        binaries: Instructions with their lines, of each binary that the text became; which of them
            ran is seen by what the instructions do.
    """
    samples: Counter[int] = Counter()
    waits: dict[int, Counter[str]] = defaultdict(Counter)
    executed: Counter[int] = Counter()
    sectors: Counter[int] = Counter()
    for block in blocks:
        lines = _binary_of(block, binaries)
        if lines is None:
            return LineCounts(
                text, missing="what ran is not what was compiled, so no line is known"
            )
        for each in block:
            line = lines.get(each.place, ("", 0))[1]
            samples[line] += each.samples
            waits[line].update(each.waits)
            executed[line] += int(each.executed)
            sectors[line] += int(each.sectors)
    total = sum(samples.values())
    if total < FEWEST:
        return LineCounts(text, missing=f"warps were seen {total} times only, too few to say")
    found = {}
    for line in sorted({*samples, *executed} - {0}):
        (most, _), *_ = waits[line].most_common(1) or [("", 0)]
        found[line] = LineCount(
            samples[line] / total,
            WAITS.get(most, most.replace("_", " ")),
            float(executed[line]),
            float(sectors[line] * SECTOR),
        )
    return LineCounts(text, found, total, "Nsight Compute", what="warps' time")


def _binary_of(
    block: Sequence[Instruction], binaries: Sequence[Mapping[int, tuple[str, int]]]
) -> Mapping[int, tuple[str, int]] | None:
    """Return the binary whose instructions those of a start are; None where there is none."""

    def same(lines: Mapping[int, tuple[str, int]]) -> float:
        alike = sum(lines.get(each.place, ("", 0))[0] == each.operation for each in block)
        return alike / max(len(block), len(lines))

    best = max(binaries, key=same, default=None)
    return best if best is not None and same(best) >= _LEAST_SAME else None


__all__ = ["WAITS", "Instruction", "read_instructions", "seen_lines"]
