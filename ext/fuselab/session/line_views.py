"""What each line of a cell costs: measured by kernel and call, given to lines by what they do."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fusec.report import SourceLine, Timing
from fuselab.display import words
from fuselab.display.bounds import Traffic
from fuselab.display.kernel_text import extent_of
from fuselab.display.source_lines import LineView

if TYPE_CHECKING:
    from fusec.inspect.line_costs import LineCost
    from fusec.kernel import Kernel
    from fusec.timing.line_counts import LineCounts

Place = tuple[str, int]  # a file and a line

MOST_FOREIGN = 40  # lines of other files: a large model has thousands


def line_views(
    cell: Any,
    traffic: Traffic | None,
    extern_seconds: Mapping[SourceLine, float],
    of_lines: Mapping[str, Mapping[SourceLine, LineCost]],
) -> tuple[LineView, ...]:
    """Return the cell's lines, each with its costs, then those of other files that it runs.

    A kernel's time is given to its lines by how often each was seen, where somebody looked; else by
    what they do: as much of it as a copy of its bytes would take by the bytes, the rest by the
    operations.

    Args:
        cell: A ``FusedCell``.
        traffic: Tells how fast a copy is.
        extern_seconds: The time of the calls of ATen of each line, as far as it was measured.
        of_lines: What each line costs in each kernel: see ``kernel_costs``.
    """
    costs = _Costs()
    rate = traffic.least / traffic.copy if traffic and traffic.copy > 0 else 0.0
    for name, kernel in cell.latest_kernels.items():
        timing = cell.kernel_times.get(name)
        seen = seen_shares(kernel, cell.line_counts.get(name))
        costs.add_kernel(name, kernel, of_lines[name], timing, rate, seen)
    costs.add_calls(cell.externs, extern_seconds, _call_bytes(cell))
    found = []
    if cell.plan is not None:
        for number, own_text in enumerate(str(cell.plan.text).splitlines(), 1):
            found.append(costs.view("", number, own_text, (cell.filename, number)))
    own = cell.filename if cell.plan is not None else None
    foreign = costs.of_other_files(own)
    found += [costs.view(*place, costs.texts[place], place) for place in foreign]
    if not costs.timed:
        return tuple(found)
    times = [view.time for view in found]
    parts = words.shares([*times, max(0.0, 1 - sum(times))])  # the last is what is not listed
    return tuple(replace(view, part=part) for view, part in zip(found, parts, strict=False))


def seen_shares(kernel: Kernel, counts: LineCounts | None) -> dict[SourceLine, float]:
    """Return the share of a kernel's time of each line of the cell, by how often it was seen.

    What no line of the cell stands for, such as the head of a loop, is given to all of them.

    Args:
        kernel: Of the cell.
        counts: What was seen of the lines of some text of it.
    """
    if counts is None or counts.text != kernel.source or kernel.state == "edited":
        return {}
    found: dict[SourceLine, float] = defaultdict(float)
    for number, line in counts.lines.items():
        places = kernel.generated.origins.get(number, ())
        for place in places:
            found[place] += line.share / len(places)
    known = sum(found.values())
    return {place: share / known for place, share in found.items()} if known else {}


def kernel_costs(cell: Any) -> dict[str, dict[SourceLine, LineCost]]:
    """Return what each line costs in each kernel of a cell, at the sizes of the latest call."""
    from fusec.inspect.line_costs import graph_line_costs, line_costs  # imports the compiler

    known: dict[int, dict[SourceLine, LineCost]] = {}
    for graph in cell.latest_graphs:
        known |= graph_line_costs(graph)
    steps = {found.where for found in cell.breaks if found.of_optimizer and found.where}
    found: dict[int, dict[SourceLine, LineCost]] = {}
    for graph in cell.latest_graphs:
        mine = {id(k): known.get(id(k)) or line_costs(k) for k in graph.kernels}
        if len(steps) == 1 and not any(mine.values()):  # the graph of an optimizer's step
            mine = {id(k): _of_one_line(k, *steps) for k in graph.kernels}
        found |= mine
    return {name: found.get(id(k), {}) for name, k in cell.latest_kernels.items()}


def _call_bytes(cell: Any) -> dict[SourceLine, int]:
    """Return the bytes that the calls of ATen of each line move."""
    from fusec.inspect.line_costs import graph_call_bytes  # imports the compiler

    found: dict[SourceLine, int] = defaultdict(int)
    for graph in cell.latest_graphs:
        for line, count in graph_call_bytes(graph).items():
            found[line] += count
    return found


def _of_one_line(kernel: Kernel, line: SourceLine) -> dict[SourceLine, LineCost]:
    """Give one line all that a kernel moves and computes; nothing where that is not known."""
    from fusec.inspect.line_costs import LineCost

    source = kernel.generated
    if min(source.read_bytes, source.written_bytes) < 0:
        return {}
    return {line: LineCost(source.read_bytes + source.written_bytes, max(source.operations, 0))}


class _Costs:
    """What lines cost, as far as it has been added up.

    Attributes:
        seconds: By line.
        moved: Bytes by line.
        at: By line and kernel: the kernel's lines that compute it.
        calls: By line: the calls of ATen.
        texts: By line.
        timed: Whether the time of each kernel and call is known.
        whole: All seconds, once everything is added.
        all_bytes: All bytes, likewise.
    """

    def __init__(self) -> None:
        self.seconds: dict[Place, float] = defaultdict(float)
        self.moved: dict[Place, int] = defaultdict(int)
        self.at: dict[Place, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
        self.calls: dict[Place, list[str]] = defaultdict(list)
        self.texts: dict[Place, str] = {}
        self.timed = True
        self.whole = 0.0
        self.all_bytes = 0

    def _known_as(self, line: SourceLine) -> Place:
        place = line.file, line.line
        self.texts[place] = self.texts.get(place) or line.text
        return place

    def add_kernel(
        self,
        name: str,
        kernel: Kernel,
        costs: Mapping[SourceLine, LineCost],
        timing: Timing | None,
        rate: float,
        seen: Mapping[SourceLine, float],
    ) -> None:
        """Add a kernel.

        Args:
            name: What the cell calls it.
            kernel: The kernel.
            costs: What each line costs in it.
            timing: Of the kernel alone, where that is known.
            rate: The bytes that a copy moves in a second; 0: not known.
            seen: Each line's share of its time, where somebody looked.
        """
        total = sum(cost.bytes for cost in costs.values())
        work = sum(cost.operations for cost in costs.values())
        self.timed = self.timed and timing is not None and bool(costs)
        for line, cost in costs.items():
            key = self._known_as(line)
            self.moved[key] += cost.bytes
            if timing is not None and not seen:
                copied = min(timing.median, total / rate) if rate else timing.median
                copied = copied if work else timing.median
                self.seconds[key] += copied * cost.bytes / total if total else 0.0
                rest = timing.median - copied if total else timing.median
                self.seconds[key] += rest * cost.operations / work if work else 0.0
        if timing is not None:
            for line, share in seen.items():
                self.seconds[self._known_as(line)] += timing.median * share
        if kernel.state == "edited":
            return
        for number, places in kernel.generated.origins.items():
            for place in places:
                self.at[self._known_as(place)][name].append(number)
        if not kernel.generated.origins and len(costs) == 1:  # all of an optimizer's step
            extent = extent_of(kernel.source, kernel.target)
            numbers = range(extent.first, extent.last + 1)
            self.at[self._known_as(next(iter(costs)))][name].extend(numbers)

    def add_calls(
        self,
        externs: Iterable[Any],
        seconds: Mapping[SourceLine, float],
        moved: Mapping[SourceLine, int],
    ) -> None:
        """Add all calls of ATen, their bytes, and the times that were measured: last of all."""
        for call in externs:
            if call.where is not None:
                self.calls[self._known_as(call.where)].append(call.name)
                self.timed = self.timed and call.where in seconds
        for line, value in seconds.items():
            self.seconds[self._known_as(line)] += value
        for line, count in moved.items():
            self.moved[self._known_as(line)] += count
        self.whole, self.all_bytes = sum(self.seconds.values()), sum(self.moved.values())
        self.timed = self.timed and self.whole > 0

    def view(self, file: str, number: int, text: str, place: Place) -> LineView:
        """Return a line as it is shown."""
        count = self.moved.get(place, -1)
        return LineView(
            file,
            number,
            text,
            time=self.seconds.get(place, 0.0) / self.whole if self.timed else -1.0,
            bytes=count,
            share=count / self.all_bytes if count > 0 and self.all_bytes else 0.0,
            externs=tuple(dict.fromkeys(self.calls.get(place, ()))),
            at={name: tuple(numbers) for name, numbers in self.at.get(place, {}).items()},
        )

    def of_other_files(self, own: str | None) -> list[Place]:
        """Return the lines of other files that cost most, in their files' order."""
        every = (*self.at, *self.moved, *self.calls)
        found = [place for place in every if place[0] != own and self.texts[place]]
        found.sort(key=lambda place: -(self.seconds[place] if self.timed else self.moved[place]))
        return sorted(dict.fromkeys(found[:MOST_FOREIGN]))


__all__ = ["kernel_costs", "line_views", "seen_shares"]
