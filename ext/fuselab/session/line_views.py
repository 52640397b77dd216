"""What each line of a cell costs: measured by kernel and call, given to lines by what they do."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from fusec.report import SourceLine
from fuselab.display.bounds import Traffic
from fuselab.display.source_lines import LineView

Place = tuple[str, int]  # a file and a line

MOST_FOREIGN = 40  # lines of other files: a large model has thousands


def line_views(
    cell: Any, traffic: Traffic | None, extern_seconds: Mapping[SourceLine, float]
) -> tuple[LineView, ...]:
    """Return the cell's lines, each with its costs, then those of other files that it runs.

    A kernel's time is given to its lines by what they do: as much of it as a copy of its bytes
    would take by the bytes, the rest by the operations.

    Args:
        cell: A ``FusedCell``.
        traffic: Tells how fast a copy is.
        extern_seconds: The time of the calls of ATen of each line, as far as it was measured.
    """
    from fusec.inspect.line_costs import line_costs  # imports the compiler

    seconds: dict[Place, float] = defaultdict(float)
    moved: dict[Place, int] = defaultdict(int)
    at: dict[Place, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    texts: dict[Place, str] = {}

    def known_as(line: SourceLine) -> Place:
        place = line.file, line.line
        texts[place] = texts.get(place) or line.text
        return place

    timed = True
    rate = traffic.least / traffic.copy if traffic and traffic.copy > 0 else 0.0
    for name, kernel in cell.kernels.items():
        costs = line_costs(kernel)
        total = sum(cost.bytes for cost in costs.values())
        work = sum(cost.operations for cost in costs.values())
        timing = cell.kernel_times.get(name)
        timed = timed and timing is not None and bool(costs)
        for line, cost in costs.items():
            key = known_as(line)
            moved[key] += cost.bytes
            if timing is not None:
                copied = min(timing.median, total / rate) if rate else timing.median
                copied = copied if work else timing.median
                seconds[key] += copied * cost.bytes / total if total else 0.0
                rest = timing.median - copied if total else timing.median
                seconds[key] += rest * cost.operations / work if work else 0.0
        if kernel.state != "edited":
            for number, places in kernel.generated.origins.items():
                for place in places:
                    at[known_as(place)][name].append(number)
    calls: dict[Place, list[str]] = defaultdict(list)
    for call in cell.externs:
        if call.where is not None:
            calls[known_as(call.where)].append(call.name)
            timed = timed and call.where in extern_seconds
    for line, value in extern_seconds.items():
        seconds[known_as(line)] += value
    whole = sum(seconds.values())
    timed = timed and whole > 0
    bytes_of_all = sum(moved.values())

    def view(file: str, number: int, text: str, place: Place) -> LineView:
        count = moved.get(place, -1)
        return LineView(
            file,
            number,
            text,
            time=seconds.get(place, 0.0) / whole if timed else -1.0,
            bytes=count,
            share=count / bytes_of_all if count > 0 and bytes_of_all else 0.0,
            externs=tuple(dict.fromkeys(calls.get(place, ()))),
            at={name: tuple(numbers) for name, numbers in at.get(place, {}).items()},
        )

    found = []
    if cell.plan is not None:
        for number, own_text in enumerate(str(cell.plan.text).splitlines(), 1):
            found.append(view("", number, own_text, (cell.filename, number)))
    own = cell.filename if cell.plan is not None else None
    foreign = [place for place in (*at, *moved, *calls) if place[0] != own and texts[place]]
    foreign.sort(key=lambda place: -(seconds[place] if timed else moved[place]))
    shown = sorted(dict.fromkeys(foreign[:MOST_FOREIGN]))
    return (*found, *(view(key[0], key[1], texts[key], key) for key in shown))


__all__ = ["line_views"]
