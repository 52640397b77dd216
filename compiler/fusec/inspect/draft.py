"""All that stands in the way, in one report: ``fusec.explain(function, *args, draft=True)``.

Capture goes on behind a graph break, so that all breaks are found in one run; nothing is built.
A second capture with symbolic sizes finds the sizes that the code itself fixes. Each finding has
its line, a reason and a way to mend it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

import torch

from fusec.capture.graph_inputs import input_names
from fusec.compiled.graph import CompiledGraph
from fusec.inspect.predict import Captured
from fusec.inspect.sections import Sectioned
from fusec.report import GraphBreak, Guard, SourceLine, counted


class Kind(Enum):
    """What is in the way; in the order in which it is worth mending."""

    ERROR = "capture failed"
    BREAK = "graph breaks"
    DATA = "sizes and branches that depend on data"
    MESSAGE = "messages between two graphs"
    EAGER = "runs in eager"
    FIXED = "sizes that the code fixes"
    EFFECT = "side effects"
    OPERATOR = "operators without a kernel"
    RECOMPILE = "compiled again because"
    EXPECTED = "breaks that are as they should be"
    GUARD = "guards"


@dataclass(frozen=True)
class Obstacle:
    """One thing that is in the way, or has to stay as it is.

    Attributes:
        kind: What it is.
        what: In words.
        mend: What to do; empty where there is nothing to do.
        where: The user's line.
        count: How often it was found.
    """

    kind: Kind
    what: str
    mend: str = ""
    where: SourceLine | None = None
    count: int = 1

    def __str__(self) -> str:
        times = f" ({self.count} times)" if self.count > 1 else ""
        place = f"   [{self.where}]" if self.where is not None else ""
        return f"{self.what}{times}{place}"


@dataclass(frozen=True, repr=False)
class Draft(Sectioned):
    """What a function's compilation, and its export, would meet.

    Attributes:
        name: The function's.
        graphs: Into how many graphs it is captured.
        kernels: How many kernels these have.
        findings: By kind, each once.
    """

    name: str
    graphs: int
    kernels: int
    findings: tuple[Obstacle, ...]

    def of(self, kind: Kind) -> tuple[Obstacle, ...]:
        """Return the findings of a kind."""
        return tuple(each for each in self.findings if each.kind is kind)

    @property
    def export(self) -> tuple[str, ...]:
        """What has to be mended before ``torch.export`` could take it as one graph."""
        lines = [
            f"{kind.value}: {counted(len(self.of(kind)), 'place')} to mend"
            for kind in (Kind.ERROR, Kind.BREAK, Kind.DATA)
            if self.of(kind)
        ]
        if self.of(Kind.MESSAGE):
            lines.append(
                "messages are left out: torch.export passes over them, and makes one graph"
            )
        if self.of(Kind.EXPECTED):
            lines.append("backward() and optimizers stay outside of what is exported")
        if self.of(Kind.EFFECT):
            names = ", ".join(each.what.split(":")[0] for each in self.of(Kind.EFFECT)[:4])
            lines.append(f"side effects are lost, but for buffers of a module: {names}")
        if self.of(Kind.FIXED):
            lines.append("sizes that the code fixes cannot be declared as Dim of dynamic_shapes")
        return tuple(lines) or ("nothing stands in the way of one graph",)

    def sections(self) -> Iterator[tuple[str, list[str]]]:
        """Yield headings with their lines."""
        bad = (Kind.ERROR, Kind.BREAK, Kind.DATA, Kind.MESSAGE, Kind.EAGER)
        wrong = sum(len(self.of(kind)) for kind in bad)
        counts = [
            counted(self.graphs, "graph"),
            counted(self.kernels, "kernel"),
            f"{wrong or 'nothing'} to mend",
        ]
        yield f"{self.name}, draft: {', '.join(counts)}", []
        for kind in Kind:
            lines: list[str] = []
            for each in self.of(kind):
                lines.append(str(each))
                if each.mend:
                    lines.append(f"  to mend it: {each.mend}")
            yield kind.value, lines
        yield "for export", list(self.export)

    def data(self) -> dict[str, Any]:
        """Return it as what JSON can hold."""
        found = [{**asdict(each), "kind": each.kind.name.lower()} for each in self.findings]
        return {"name": self.name, "graphs": self.graphs, "kernels": self.kernels, "found": found}


_PART = re.compile(r"_(?:parameters|buffers)_")  # of a module, whose sizes never change


def draft(
    name: str,
    captured: Iterable[Captured],
    symbolic: Captured | None = None,
    errors: Sequence[tuple[BaseException, SourceLine | None]] = (),
) -> Draft:
    """Return the report of what was captured.

    Args:
        name: The function's, or the cell's.
        captured: What came of it.
        symbolic: What came of it with symbolic sizes.
        errors: What capture raised, with the user's lines.
    """
    captured = list(captured)
    graphs = [graph for each in captured for graph in each.graphs]
    found: list[Obstacle] = [
        Obstacle(
            Kind.ERROR,
            f"{type(e).__name__}: {str(e).splitlines()[0] if str(e) else ''}",
            "call it without fusec.compile: eager says the same, or it is a defect of ours",
            where,
        )
        for e, where in errors
    ]
    for each in captured:
        found += map(_break, each.breaks)
        for graph in each.graphs:
            found += _of_graph(graph)
        found += [Obstacle(Kind.RECOMPILE, again.text, again.hint) for again in each.recompiles]
        found += _guards(each.guards)
    if symbolic is not None:
        found += _fixed(symbolic)
    kernels = sum(len(graph.kernels) for graph in graphs)
    return Draft(name, len(graphs), kernels, _each_once(found))


def _break(found: GraphBreak) -> Obstacle:
    if found.expected:
        kind = Kind.EXPECTED
    elif found.of_messages:
        kind = Kind.MESSAGE
    else:
        kind = Kind.DATA if found.of_values else Kind.BREAK
    return Obstacle(kind, found.reason, found.hint, found.where)


def _of_graph(graph: CompiledGraph) -> Iterator[Obstacle]:
    if graph.fallback:
        yield Obstacle(
            Kind.EAGER,
            f"{graph.name}: {graph.fallback}",
            "what the reason names has to change; the rest of the function is compiled",
        )
    for call in graph.externs:
        yield Obstacle(Kind.OPERATOR, f"{call.name}: {call.reason}", "", call.where)
    for effect in graph.effects:
        yield Obstacle(
            Kind.EFFECT,
            f"{effect.name}: {effect.change}",
            "return the value instead; what must be kept between calls belongs in a buffer",
        )
    for part in graph.parts:
        if part.kind == "backward":
            continue
        for name in part.state.updated:
            buffer = part.state.scheduled.buffers.get(name)
            shown = buffer.hint if buffer is not None and buffer.hint else name
            shown = shown.removeprefix("__dict___")
            yield Obstacle(Kind.EFFECT, f"{shown}: the tensor is updated in place")


def _guards(guards: Iterable[Guard]) -> Iterator[Obstacle]:
    for guard in guards:
        yield Obstacle(Kind.GUARD, guard.text, "", guard.where)


def _fixed(symbolic: Captured) -> Iterator[Obstacle]:
    """Yield the sizes of arguments that are numbers though all were to be symbolic."""
    where = {guard.source: guard.where for guard in symbolic.guards}
    for graph in symbolic.graphs:
        names = input_names(graph.eager)
        for position, node in enumerate(graph.eager.graph.find_nodes(op="placeholder")):
            value = node.meta.get("example_value")
            name = re.sub(r"^l_(\w+?)_$", r"\1", str(names.get(position, "")).lower())
            if not isinstance(value, torch.Tensor) or not name or _PART.search(node.name):
                continue
            if name.startswith("_"):
                continue  # what stands between two graphs
            for dim, given in enumerate(value.shape):
                # A symbol that a guard has since made a number of is no int yet.
                size = given if isinstance(given, int) else given.node.maybe_as_int()
                if size is not None and size > 1:
                    yield Obstacle(
                        Kind.FIXED,
                        f"{name} has {size} in dimension {dim}, whatever is asked for",
                        "something compares it or is made for it: write that for any size, or"
                        " leave the size fixed",
                        where.get(name),
                    )


def _each_once(found: Iterable[Obstacle]) -> tuple[Obstacle, ...]:
    counts: dict[Obstacle, int] = {}
    for each in found:
        counts[each] = counts.get(each, 0) + 1
    order = list(Kind)
    return tuple(
        Obstacle(each.kind, each.what, each.mend, each.where, count)
        for each, count in sorted(counts.items(), key=lambda item: order.index(item[0].kind))
    )


__all__ = ["Draft", "Kind", "Obstacle", "draft"]
