"""All that stands in the way, in one report: ``fusec.explain(function, *args, draft=True)``.

Capture goes on behind a graph break, so that all breaks are found in one run; nothing is built.
A second capture with symbolic sizes finds the sizes that the code itself fixes. Each finding has
its line, a reason and a way to mend it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from enum import Enum
from itertools import groupby
from pathlib import PurePath
from typing import Any

import torch
from torch import fx

from fusec.capture.dynamo.fixed_sizes import why_fixed
from fusec.capture.dynamo.side_effects import Noted
from fusec.capture.guards.described import readable_name
from fusec.capture.inputs.graph_inputs import input_names
from fusec.compiled.graph import CompiledGraph
from fusec.graph.facts.user_lines import user_line
from fusec.inspect.effect_lines import line_of
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
        about: What a guard, or an update, is about, as the user calls it: ``encoder.0.weight``.
    """

    kind: Kind
    what: str
    mend: str = ""
    where: SourceLine | None = None
    count: int = 1
    about: str = ""

    def __str__(self) -> str:
        return self.text()

    def text(self, *, file: bool = False) -> str:
        """Return it as a line; with the name of the user's file where there are several."""
        times = f" ({self.count} times)" if self.count > 1 else ""
        if self.where is None:
            return f"{self.what}{times}"
        name = f"{PurePath(self.where.file).name} " if file else ""
        return f"{self.what}{times}   [{name}{self.where}]"


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
        effects = self.of(Kind.EFFECT)
        lost = list(dict.fromkeys(e.what.split(":")[0] for e in effects if not e.about))
        if lost:
            more = f" and {len(lost) - _OWNERS} more" if len(lost) > _OWNERS else ""
            lines.append(f"side effects are lost: {', '.join(lost[:_OWNERS])}{more}")
        if any(each.about for each in effects):
            lines.append("what is exported updates the same tensors in place")
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
        file = len({each.where.file for each in self.findings if each.where is not None}) > 1
        for kind in Kind:
            found = self.of(kind)
            lines: list[str] = []
            shown = _alike(found) if kind in (Kind.GUARD, Kind.EFFECT) else found
            for mend, same in groupby(shown, key=lambda each: each.mend):
                before = len(lines)
                lines += [each.text(file=file) for each in same]
                if mend:
                    lines.append(
                        f"  to mend {'it' if len(lines) == before + 1 else 'them'}: {mend}"
                    )
            heading = (
                f"{kind.value} ({len(found)})"
                if kind in (Kind.GUARD, Kind.EFFECT) and len(shown) < len(found)
                else kind.value
            )
            yield heading, lines
        yield "for export", list(self.export)

    def data(self) -> dict[str, Any]:
        """Return it as what JSON can hold."""
        found = [{**asdict(each), "kind": each.kind.name.lower()} for each in self.findings]
        return {"name": self.name, "graphs": self.graphs, "kernels": self.kernels, "found": found}


def _alike(found_here: Sequence[Obstacle]) -> list[Obstacle]:
    """Return guards, or updates, with those of a module's parts that say the same as one line."""
    groups: dict[tuple[str, str], list[Obstacle]] = {}
    for each in found_here:
        owner, _, name = each.about.rpartition(".")
        asked = each.what.replace(each.about, name, 1) if owner else each.what
        groups.setdefault((asked, "" if owner else each.what), []).append(each)
    found = []
    for (asked, _), same in groups.items():
        if len(same) == 1:
            found += same
            continue
        owners = list(dict.fromkeys(each.about.rpartition(".")[0] for each in same))
        more = f" and {len(owners) - _OWNERS} more" if len(owners) > _OWNERS else ""
        places = {each.where for each in same}
        where = same[0].where if len(places) == 1 else None
        # of no part: the same thing, changed at several lines
        what = f"{asked}, of {', '.join(owners[:_OWNERS])}{more}" if any(owners) else asked
        found.append(Obstacle(same[0].kind, what, same[0].mend, where))
    return found


_STAYS = "a module's buffer may stay so, also in an export"
_RETURN_IT = "return the new value, unless the caller is to see that it is updated"
_OWNERS = 4  # parts of a module that are named of those whose guards are alike
_PART = re.compile(r"_(?:parameters|buffers)_")  # of a module, whose sizes never change


def draft(
    name: str,
    captured: Iterable[Captured],
    symbolic: Captured | None = None,
    errors: Sequence[tuple[BaseException, SourceLine | None]] = (),
    *,
    of_cell: bool = False,
) -> Draft:
    """Return the report of what was captured.

    Args:
        name: The function's, or the cell's.
        captured: What came of it.
        symbolic: What came of it with symbolic sizes.
        errors: What capture raised, with the user's lines.
        of_cell: Whether it is a notebook's cell: the names that it assigns are its results.
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
        found += _effects(each.effects, of_cell)
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


def _effects(effects: Iterable[Noted], of_cell: bool) -> Iterable[Obstacle]:
    found: dict[Obstacle, None] = {}
    for effect, codes in effects:
        if of_cell and effect.of_global:
            continue
        mend = "return the value instead; what must be kept between calls belongs in a buffer"
        what = f"{effect.name}: {effect.change}"
        found[Obstacle(Kind.EFFECT, what, mend, line_of(effect, codes))] = None
    return found


def _of_graph(graph: CompiledGraph) -> Iterator[Obstacle]:
    if graph.fallback:
        yield Obstacle(
            Kind.EAGER,
            f"{graph.name}: {graph.fallback}",
            "what the reason names has to change; the rest of the function is compiled",
        )
    for call in graph.externs:
        yield Obstacle(Kind.OPERATOR, f"{call.name}: {call.reason}", "", call.where)
    for part in graph.parts:
        if part.kind == "backward":
            continue
        program = part.state.scheduled
        for name in part.state.updated:
            buffer = program.buffers.get(name)
            shown = buffer.hint if buffer is not None and buffer.hint else name
            node = _placeholder(graph, program.inputs, name)
            source = graph.input_sources.get(program.inputs.index(name), "") if node else ""
            shown = readable_name(source) if source else shown.removeprefix("__dict___")
            if "_buffers" in source:
                what, mend = "a buffer is updated in place", _STAYS
            else:
                what, mend = "the tensor is updated in place", _RETURN_IT
            yield Obstacle(Kind.EFFECT, f"{shown}: {what}", mend, _last_line(node), about=shown)


def _placeholder(graph: CompiledGraph, inputs: Sequence[str], name: str) -> fx.Node | None:
    """Return what an updated input is in the captured graph."""
    places = list(graph.eager.graph.find_nodes(op="placeholder"))
    return places[inputs.index(name)] if name in inputs and len(inputs) == len(places) else None


def _last_line(place: fx.Node | None) -> SourceLine | None:
    """Return the line that uses an input last."""
    traces = [node.meta.get("stack_trace") for node in (place.users if place is not None else ())]
    return user_line(traces[-1]) if traces else None


def _guards(guards: Iterable[Guard]) -> Iterator[Obstacle]:
    for guard in guards:
        yield Obstacle(Kind.GUARD, guard.text, "", guard.where, about=guard.source)


def _fixed(symbolic: Captured) -> Iterator[Obstacle]:
    """Yield the sizes of arguments that are numbers though all were to be symbolic."""
    for graph in symbolic.graphs:
        names = input_names(graph.eager)
        for position, node in enumerate(graph.eager.graph.find_nodes(op="placeholder")):
            value = node.meta.get("example_value")
            name = _argument(str(names.get(position, "")))
            if not isinstance(value, torch.Tensor) or not name or _PART.search(node.name):
                continue
            if name.startswith(("_", "l_self_param_groups_", "l_self_state_")):
                continue  # what stands between two graphs, or is an optimizer's
            for dim, given in enumerate(value.shape):
                # A symbol that a guard has since made a number of is no int yet.
                size = given if isinstance(given, int) else given.node.maybe_as_int()
                if size is not None and size > 1:
                    why = why_fixed(given, graph.eager)
                    what = f"{name} has {size} in dimension {dim}, whatever is asked for"
                    yield Obstacle(
                        Kind.FIXED,
                        f"{what}: {why.reason}",
                        "leave it fixed where it follows from a weight or a setting; else write"
                        " that line for any size",
                        why.where,
                    )


def _argument(name: str) -> str:
    """Return what the user calls an input that TorchDynamo has named: ``l_x_``, ``l_args_0_``."""
    name = re.sub(r"^l_(\w+?)_$", r"\1", name.lower()).removeprefix("kwargs_")
    return re.sub(r"^args_(\d+)$", r"args[\1]", name)


def _each_once(found: Iterable[Obstacle]) -> tuple[Obstacle, ...]:
    counts: dict[Obstacle, int] = {}
    for each in found:
        counts[each] = counts.get(each, 0) + 1
    order = list(Kind)
    return tuple(
        replace(each, count=count)
        for each, count in sorted(counts.items(), key=lambda item: order.index(item[0].kind))
    )


__all__ = ["Draft", "Kind", "Obstacle", "draft"]
