"""What decisions go by: a body, its buffers, and what follows from them. No text is in here."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Self

from fusec.codegen.common.carried_nan import extremes_of_numbers
from fusec.ir.body import Body, Buffer, axis_sizes
from fusec.ir.checks import is_check
from fusec.ir.index import Symbol, lower_bound
from fusec.ir.node import Node, Op
from fusec.ir.scalars import cost_of
from fusec.ir.shapes import product
from fusec.ir.walk import free_axes
from fusec.targets.cpp.plan import choices
from fusec.targets.cpp.plan.wanted import Wanted


@dataclass(frozen=True)
class Decision:
    """One thing that was decided.

    Attributes:
        name: Of what: a field of the plan, or a technique.
        value: How.
        reason: Why, for a person.
    """

    name: str
    value: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name}: {self.value} ({self.reason})"


@dataclass
class Facts:
    """A body and what its loops are decided by.

    Attributes:
        body: What is computed.
        buffers: Every buffer of the program by name.
        streamed: Results that are written past the caches.
        checked: Whether the kernel, of which this may be a part, can fail.
        wanted: What somebody wants of its loops.
        decisions: What was decided so far, of all parts.
        nodes: All nodes, arguments before users.
        free: Node to the axes that its value depends on.
        users: Node to the nodes that have it as an argument.
        updated: Buffers that are read and written.
    """

    body: Body
    buffers: Mapping[str, Buffer]
    streamed: frozenset[str] = field(default=frozenset(), kw_only=True)
    checked: bool | None = field(default=None, kw_only=True)
    wanted: Wanted = field(default_factory=Wanted, kw_only=True)
    decisions: list[Decision] = field(default_factory=list, kw_only=True)

    def __post_init__(self) -> None:
        self.nodes = self.body.nodes()
        if self.checked is None:
            self.checked = any(is_check(node) for node in self.nodes)
        self.free = free_axes(self.body.computed)
        self.users: dict[Node, list[Node]] = {}
        for node in self.nodes:
            for arg in node.args:
                self.users.setdefault(arg, []).append(node)
        written = set(self.body.writes())
        self.updated = frozenset(node.buffer for node in self.body.loads()) & written

    @cached_property
    def extremes_of_numbers(self) -> frozenset[Node]:
        """Maxima that may leave NaN out."""
        return extremes_of_numbers(self.body)

    def part(self, body: Body) -> Self:
        """Return the same for a part of the body: in a kernel the same names and tunables."""
        return replace(self, body=body)

    @property
    def may_thread(self) -> bool:
        """Whether the outer points may be shared out: none updates what another may update."""
        return not self.body.updated()

    def note(self, name: str, value: str, reason: str) -> None:
        """Note a decision and its reason, once."""
        decision = Decision(name, value, reason)
        if decision not in self.decisions:
            self.decisions.append(decision)

    def called(self, buffers: Iterable[str]) -> str:
        """Return what the user calls some buffers, each once."""
        names = (self.buffers[name].hint or name for name in buffers)
        return ", ".join(dict.fromkeys(names))

    def allows(self, technique: str) -> bool:
        """Whether nobody asked for a technique to be left out."""
        return self.wanted.allows(technique)

    def closure(self, roots: Iterable[Node], known: Collection[Node]) -> list[Node]:
        """Return the nodes that ``roots`` are computed from, up to those ``known``, in order."""
        live: set[Node] = set()
        stack = list(roots)
        while stack:
            node = stack.pop()
            if node not in live and node not in known:
                live.add(node)
                stack.extend(node.args)
        return [node for node in self.nodes if node in live]

    def fixed(self, axis: Symbol) -> set[Node]:
        """Return the nodes that stay the same along ``axis``: known above a loop over it."""
        return {node for node in self.nodes if axis not in self.free[node]}


def cost(nodes: Iterable[Node]) -> int:
    """Return what one evaluation of ``nodes`` costs, in additions."""
    return sum(cost_of(node.name) for node in nodes if isinstance(node, Op))


def extent(axis: Symbol) -> int | None:
    """Return how long an axis is; None where that is not known when the kernel is written."""
    return axis.size.constant if axis.size is not None else 1


def is_even(axis: Symbol) -> bool:
    """Whether the blocks of a whole loop along ``axis`` are all full."""
    size = extent(axis)
    return size is not None and size % choices.LINE == 0


def points(axes: Sequence[Symbol]) -> int | None:
    """Return how many points a nest of loops has; None where that is not known."""
    return product(axis_sizes(tuple(axes))).constant


def may_be_empty(symbol: Symbol) -> bool:
    """Whether a checked index may have no valid value at all, the dimension being empty."""
    low = None if symbol.size is None else lower_bound(symbol.size)
    return low is None or low < 1


__all__ = ["Decision", "Facts", "cost", "extent", "is_even", "may_be_empty", "points"]
