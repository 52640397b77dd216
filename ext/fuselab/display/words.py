"""Figures as words: times, errors, ratios, sizes; for a terminal and for HTML alike."""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import replace

from fusec.report import OutputError, SourceLine, Timing, Verdict, digits
from fuselab.display.noise import against, ratio

# What IPython and ipykernel call the code of a cell.
_CELL_FILE = re.compile(r"<ipython-input-(\d+)-")
_KERNEL_FILE = re.compile(r"[/\\]ipykernel_\d+[/\\]")

# Before how something was measured whose times stand beside those of another run.
OWN_RUN = "timed in a run of its own: "
EARLY = "timed before the part that makes calls quick was built: run the cell again in a minute"
# The same where the result changes by itself.
AWAITED = "timed before the part that makes calls quick was built: timed again as soon as it is"
# What people call a backend of ``torch.compile``.
PEERS = {"inductor": "TorchInductor"}
NOT_TUNED = "no GPU here: the times of Triton's interpreter say nothing, so nothing is tuned"
REFUSALS = {
    "empty": "Refused: nothing to check",
    "signature": "Refused: another signature",
    "compile": "Refused: does not compile",
    "unsafe": "Refused: unsafe for the notebook",
    "crash": "Refused: it crashed",
    "bounds": "Refused: out of bounds",
    "timeout": "Refused: it did not end",
    "wrong": "Refused: wrong result",
}


def early(awaited: bool) -> str:
    """Return that figures came too early, and what is to be done.

    Args:
        awaited: Whether they are measured again, and shown in place, without being asked for.
    """
    return AWAITED if awaited else EARLY


def many(value: float) -> str:
    """Write a count: all of it below a thousand, ``598 k`` and ``15.3 M`` above."""
    for unit, each in ((" G", 1e9), (" M", 1e6), (" k", 1e3)):
        if value >= each:
            return digits(value / each) + unit
    return str(int(value)) if value == int(value) else digits(value)


def duration(seconds: float) -> str:
    """Write a time with three digits and the unit that suits it."""
    for factor, unit in ((1.0, "s"), (1e3, "ms"), (1e6, "µs")):
        if seconds * factor >= (0.9995 if unit == "s" else 0.09995):
            return f"{digits(seconds * factor)} {unit}"
    return f"{digits(seconds * 1e9)} ns"


def peer_title(name: str) -> str:
    """Return what people call a backend of ``torch.compile``: ``TorchInductor``."""
    return PEERS.get(name, name)


def spread(timing: Timing) -> str:
    """Write a timing with its quartiles: ``0.610 ms (0.600 to 0.640)``."""
    scale, unit = (1e3, "ms") if timing.median >= 1e-4 else (1e6, "µs")
    low, median, high = (digits(v * scale) for v in (timing.low, timing.median, timing.high))
    return f"{median} {unit} ({low} to {high})"


def error(value: float | None) -> str:
    """Write an error with two digits; 0 is the same to the last bit."""
    if value is None:
        return "–"
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "NaN or infinity"
    return "0" if value == 0 else f"{value:.1e}"


def share(value: float) -> str:
    """Write a share in percent: ``35%``; what is there and rounds to nothing is ``<1%``."""
    text = f"{value:.0%}"
    return "<1%" if value > 0 and text == "0%" else text


def shares(values: Sequence[float]) -> list[str]:
    """Write each value's share of their sum, so that what is shown adds up to 100 %.

    Each is rounded down, and what is missing goes to those that lost most by it. Equal values may
    differ by 1 % so; a column of shares that adds up to 101 % would be the stranger sight.
    """
    total = math.fsum(values)
    if not total > 0:
        return [share(0.0) for _ in values]
    exact = [100 * value / total for value in values]
    whole = [math.floor(each) for each in exact]
    lost = sorted(range(len(exact)), key=lambda place: (whole[place] - exact[place], place))
    for place in lost[: 100 - sum(whole)]:
        whole[place] += 1
    return [
        "<1%" if value > 0 and not percent else f"{percent}%"
        for value, percent in zip(values, whole, strict=True)
    ]


def size(count: int) -> str:
    """Write a number of bytes."""
    if count < 0:
        return "–"
    for factor, unit in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if count >= factor:
            return f"{digits(count / factor)} {unit}"
    return f"{count} B"


def rate(count: int, seconds: float) -> str:
    """Write a memory rate in decimal gigabytes a second, as vendors do."""
    return f"{digits(count / seconds / 1e9)} GB/s" if count > 0 and seconds > 0 else ""


def count(number: int, noun: str, plural: str = "") -> str:
    """Write ``1 kernel``, ``2 kernels``, ``no kernel``."""
    if number == 0:
        return f"no {noun}"
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def lines_of(places: Iterable[SourceLine], file: str = "") -> str:
    """Write cell lines as ranges: ``lines 3-5, 8``; those of other files are left out."""
    numbers = sorted({place.line for place in places if not file or place.file == file})
    if not numbers:
        return ""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    text = ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in ranges)
    return f"line {text}" if len(numbers) == 1 else f"lines {text}"


def all_lines_of(places: Iterable[SourceLine], file: str) -> str:
    """Write lines as ranges, the cell's own first: ``line 2; another cell, lines 3-5``."""
    found = list(places)
    others = dict.fromkeys(place.file for place in found if place.file not in ("", file))
    parts = [lines_of([place for place in found if place.file not in others], "")]
    parts += [f"{file_title(other)}, {lines_of(found, other)}" for other in others]
    return "; ".join(filter(None, parts))


def gutter_of(places: Iterable[SourceLine], file: str) -> str:
    """Write what stands beside a kernel's line: ``line 2``, or ``other 5`` of another cell."""
    found = list(places)
    own = lines_of(found, file)
    if own or not found:
        return own
    return lines_of(found[:1]).replace("line", "other")


def line_class(file: str, line: int) -> str:
    """Return the class of everything on a page that is of one line; no file is the cell's own."""
    return f"l{line}-{zlib.crc32(file.encode()):x}" if file else f"l{line}"


def file_title(file: str) -> str:
    """Return what people call a file of code: another cell has a name that says nothing."""
    numbered = _CELL_FILE.match(file)
    if numbered:
        return f"cell [{numbered[1]}]"
    return "another cell" if _KERNEL_FILE.search(file) else file


def where(place: SourceLine | None, file: str = "") -> str:
    """Write a place in the user's code; the file only where it is not the cell itself."""
    if place is None:
        return ""
    if place.file == file or not place.file:
        return str(place)
    return f"{file_title(place.file)}, {place}"


def worst(outputs: Sequence[OutputError]) -> OutputError | None:
    """Return the output whose error is the largest share of what is allowed."""

    def badness(output: OutputError) -> tuple[bool, float]:
        if math.isnan(output.against_eager):
            return (not output.ok, math.inf)
        return (not output.ok, output.against_eager / max(output.allowed, 1e-300))

    return max(outputs, key=badness, default=None)


def error_line(verdict: Verdict) -> str:
    """Say how far the worst output is from eager and from float64; empty where nothing ran."""
    output = worst(verdict.outputs)
    if output is None:
        return ""
    text = f"error against eager {error(output.against_eager)} (allowed {error(output.allowed)})"
    if output.against_float64 is not None:
        text += f", against float64 {error(output.against_float64)}"
        if output.eager_against_float64 is not None:
            text += f" (eager's own {error(output.eager_against_float64)})"
    if len(verdict.outputs) > 1:
        text += f"; worst of {len(verdict.outputs)} outputs: {output.name}"
    return text


def time_line(verdict: Verdict, *, compared_alone: bool = False) -> str:
    """Say how fast the checked kernel and its graph are; empty where nothing was timed.

    Args:
        verdict: Of the check.
        compared_alone: Whether times of the same code stand beside this line: they are of another
            run, so that the verdict's reason, which says how the two texts compare, is all.
    """
    parts = []
    if compared_alone:
        verdict = replace(verdict, timing=None, graph=None)
    if verdict.timing:
        part = f"kernel {duration(verdict.timing.median)}"
        if verdict.generated:
            faster = against(verdict.timing, verdict.generated)
            part += f", generated {duration(verdict.generated.median)} ({faster})"
        parts.append(part)
    if verdict.graph:
        part = f"whole graph {duration(verdict.graph.median)}"
        if verdict.eager:
            faster = against(verdict.graph, verdict.eager)
            part += f", eager {duration(verdict.eager.median)} ({faster})"
        parts.append(part)
        if verdict.timing and verdict.timing.median > verdict.graph.median:
            parts.append("the two were timed in different runs")
    if verdict.seconds:
        parts.append(f"checked in {duration(verdict.seconds)}")
    return "; ".join(parts)


__all__ = [
    "REFUSALS",
    "all_lines_of",
    "count",
    "digits",
    "duration",
    "error",
    "error_line",
    "file_title",
    "gutter_of",
    "line_class",
    "lines_of",
    "rate",
    "ratio",
    "share",
    "size",
    "spread",
    "time_line",
    "where",
    "worst",
]
