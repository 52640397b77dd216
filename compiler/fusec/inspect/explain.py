"""One report of what became of a function: ``fusec.explain(function, *args)``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from fusec.compiled.graph import CompiledGraph
from fusec.inspect.sections import Sectioned
from fusec.report import (
    GraphBreak,
    Guard,
    Recompile,
    SavedTensor,
    SourceLine,
    compile_line,
    counted,
    digits,
    seconds_by_stage,
)


@dataclass(frozen=True, repr=False)
class Explanation(Sectioned):
    """What was captured, where capture stopped, what must stay true, what runs.

    Attributes:
        name: The function's.
        graphs: Its compiled graphs, in order of first run.
        breaks: Where capture stopped and Python ran.
        guards: What must stay true for the compiled code to be used again.
        recompiles: Why it was compiled again.
        layers: What was compiled once for several layers.
    """

    name: str
    graphs: tuple[CompiledGraph, ...]
    breaks: tuple[GraphBreak, ...]
    guards: tuple[Guard, ...]
    recompiles: tuple[Recompile, ...]
    layers: tuple[str, ...] = ()

    @property
    def saved(self) -> tuple[SavedTensor, ...]:
        """What the forward parts keep for the backward parts."""
        return tuple(each for graph in self.graphs for each in graph.saved)

    def sections(self) -> Iterator[tuple[str, list[str]]]:
        """Yield headings with their lines."""
        kernels = sum(len(graph.kernels) for graph in self.graphs)
        count = f"{counted(len(self.graphs), 'graph')}, {counted(kernels, 'kernel')}"
        yield f"{self.name}: {count}, {counted(len(self.breaks), 'graph break')}", []
        yield "layers compiled once", list(self.layers)
        for graph in self.graphs:
            yield graph.name, list(_graph_lines(graph))
        yield "graph breaks", list(_break_lines(self.breaks))
        yield "used again as long as", [_located(guard.text, guard.where) for guard in self.guards]
        again = [f"{n}. {each}" for n, each in enumerate(self.recompiles, 1)]
        yield "compiled again because", again


def _located(text: str, where: SourceLine | None) -> str:
    return f"{text}   [{where}]" if where is not None else text


def _break_lines(breaks: Iterable[GraphBreak]) -> Iterator[str]:
    for each in breaks:
        yield _located(each.reason, each.where)
        if each.hint:
            yield f"  to mend it: {each.hint}"


def _graph_lines(graph: CompiledGraph) -> Iterator[str]:
    if graph.fallback:
        yield graph.fallback
    if graph.stages:
        yield compile_line(seconds_by_stage(graph.stages))
    changed = dict.fromkeys(run.name for run in graph.passes if run.changes)
    if changed:
        yield f"passes that changed the graph: {', '.join(changed)}"
    for kernel in graph.kernels:
        yield f"kernel {kernel.name}: {kernel.generated.summary}"
        yield from (f"  {line}" for line in kernel.generated.plan.splitlines())
    for call in graph.externs:
        yield _located(f"calls {call.name}: {call.reason}", call.where)
    for part in graph.parts:
        yield from part.by_operators
        yield from (f"{part.kind}: {note}" for note in part.graph_notes())
    new = [each for each in graph.saved if not each.given]
    if graph.saved:
        total = sum(each.bytes for each in new)
        size = "" if any(each.bytes < 0 for each in new) else f", {bytes_text(total)}"
        inputs = counted(len(graph.saved) - len(new), "input")
        yield f"kept for backward: {counted(len(new), 'tensor')}{size}, beside {inputs}"
        for each in new:
            yield _located(f"  {each}", each.where)
    if graph.recomputed:
        yield f"computed again in backward rather than kept: {', '.join(graph.recomputed)}"


def kept_text(graph: CompiledGraph, most: int = 6) -> str:
    """Return in one line what a graph keeps for backward; empty where there is no backward.

    Args:
        graph: The graph.
        most: Names of tensors to give.
    """
    saved = getattr(graph, "saved", ())
    new = [each for each in saved if not each.given]
    if not new:
        return ""
    total = sum(each.bytes for each in new)
    size = "" if any(each.bytes < 0 for each in new) else f"{bytes_text(total)} in "
    names = "; ".join(str(each) for each in new[:most]) + ("; ..." if len(new) > most else "")
    text = f"{graph.name} keeps {size}{counted(len(new), 'tensor')} for backward"
    return f"{text}: {names}" if new else text


def bytes_text(count: int) -> str:
    """Return a number of bytes as a person reads it, with three digits: ``781 KiB``."""
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= size:
            return f"{digits(count / size)} {unit}"
    return counted(count, "byte")


__all__ = ["Explanation", "bytes_text", "kept_text"]
