"""Why a size that was to be symbolic is a number: what was asked of it, and by which line."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch
from torch import fx

from fusec.graph.facts.user_lines import user_line
from fusec.report import SourceLine

_TORCH = Path(torch.__file__).parent
# How torch's ShapeEnv notes a line: ``if x.shape[0] == 7:  # model.py:12 in forward``.
_NOTED = re.compile(r"(?P<text>.*?)\s*# (?P<file>[^#]*):(?P<line>\d+) in (?P<name>\S+)$", re.DOTALL)


@dataclass(frozen=True)
class SizeReason:
    """Why a size is a number.

    Attributes:
        reason: In words.
        where: The line that asked; None where torch has not noted one.
    """

    reason: str
    where: SourceLine | None = None

    def __str__(self) -> str:
        if self.where is None:
            return self.reason
        return f"{self.reason}, {PurePath(self.where.file).name} {self.where}"


def why_fixed(size: Any, graph: fx.GraphModule) -> SizeReason:
    """Return why a dimension that was to stay symbolic is a number.

    Args:
        size: As TorchDynamo saw it.
        graph: What was captured: its nodes have the user's lines.
    """
    if isinstance(size, int):
        if size in (0, 1):
            return SizeReason(
                f"torch takes {size} for a size of its own: give an example of 2 or more"
            )
        return SizeReason("the code, or torch's capture of it, takes the size as a number")
    symbol, environment = size.node._expr, size.node.shape_env
    found = environment.replace(symbol)
    for guard in environment.guards:
        if isinstance(guard.expr, sympy.Eq) and symbol in guard.expr.free_symbols:
            place = asked_at(guard.sloc, graph) or _first_use(symbol, graph)
            return SizeReason(f"the code asks whether it is {found}", place)
    place = asked_at(environment.replacements_slocs.get(symbol), graph)
    return SizeReason("the code takes it for a number", place or _first_use(symbol, graph))


def asked_at(noted: Any, graph: fx.GraphModule) -> SourceLine | None:
    """Return the user's line that asked something of a size, as ShapeEnv noted it.

    Args:
        noted: ShapeEnv's note.
        graph: What was captured; its nodes have whole paths.

    Returns:
        None where nothing was noted, or a line of torch's own.
    """
    text = " ".join(str(getattr(noted, "maybe_user_loc", None) or "").split())
    match = _NOTED.match(text)
    if match is None:
        return None
    number, name = match["line"], match["name"]
    if (_TORCH / match["file"]).exists():
        return None
    for node in graph.graph.nodes:
        trace = node.meta.get("stack_trace") or ""
        if f"line {number}, in {name}" in trace and match["text"] in trace:
            found = user_line(trace)
            if found is not None:
                return found
    return SourceLine(PurePath(match["file"]).name, int(number), match["text"])


def _first_use(symbol: Any, graph: fx.GraphModule) -> SourceLine | None:
    """Return the line that first uses a tensor whose size it is."""
    for node in graph.graph.find_nodes(op="placeholder"):
        value = node.meta.get("example_value")
        sizes: Any = value.shape if isinstance(value, torch.Tensor) else ()
        for size in sizes:
            if isinstance(size, torch.SymInt) and size.node._expr == symbol:
                traces = (user.meta.get("stack_trace") for user in node.users)
                return next(filter(None, map(user_line, traces)), None)
    return None


__all__ = ["SizeReason", "asked_at", "why_fixed"]
