"""Bodies and programs: loops over values, and the list of them that a graph becomes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import torch

from fusec.ir.index import Expr, FloorDiv, Symbol
from fusec.ir.node import (
    Const,
    Dot,
    Load,
    Node,
    Op,
    Reduce,
    Scan,
    current_recorder,
    indirect,
    indirect_nodes,
)
from fusec.ir.shapes import product
from fusec.ir.walk import free_axes, rewrite, walk
from fusec.report import SourceLine


@dataclass(frozen=True)
class Buffer:
    """A tensor in memory.

    Attributes:
        name: Unique in its program.
        shape: Sizes.
        strides: In elements; never negative.
        dtype: Element type in memory.
        device: Where it lives.
        hint: The user's own name for it, where there is one; for readable kernels.
    """

    name: str
    shape: tuple[Expr, ...]
    strides: tuple[Expr, ...]
    dtype: torch.dtype
    device: torch.device = torch.device("cpu")
    hint: str = ""

    def offset(self, index: tuple[Expr, ...]) -> Expr:
        """Return the element offset of ``index``."""
        total = Expr.of(0)
        for i, stride, size in zip(index, self.strides, self.shape, strict=True):
            if size.constant != 1:  # the only index is 0, whatever the stride says
                total = total + i * stride
        return total

    @property
    def elements(self) -> Expr:
        """The number of elements."""
        return product(self.shape)

    @property
    def bytes(self) -> int:
        """The bytes that its elements take; -1 where a size is symbolic."""
        count = self.elements.constant
        return -1 if count is None else count * self.dtype.itemsize


@dataclass(frozen=True)
class Store:
    """One write of a body: ``buffer[index] = value``, or an update of what is there.

    Attributes:
        buffer: The buffer's name.
        index: One expression a dimension, over the body's axes.
        value: The node written; its dtype is the buffer's.
        mode: ``set`` writes every element of the buffer exactly once; ``sum`` writes every element
            as well, each the sum of the values of all points of the loops that have its index (see
            ``Body.sums``). The others are *updates*: they touch some elements, perhaps several
            times, of a buffer that another step has filled. ``put`` overwrites (which of several
            values stays is not defined); ``some`` does so where the condition of its value, a
            ``where``, holds, also in a buffer that nobody has filled; ``add``, ``mul``, ``max`` and
            ``min`` combine with what is there, in any order.
        asked: The user's line that was lowered when the store was recorded.
        made: The result's own name, where it is written over another tensor, ``buffer``; else
            empty.
    """

    buffer: str
    index: tuple[Expr, ...]
    value: Node
    mode: str = "set"
    asked: SourceLine | None = field(
        default_factory=lambda: current_recorder().source, compare=False, repr=False
    )
    made: str = field(default="", compare=False, repr=False)

    @property
    def source(self) -> SourceLine | None:
        """The user's line whose value it writes."""
        if self.asked is not None and (self.mode == "sum" or is_shared(self.value)):
            return self.asked
        return self.value.source

    @property
    def condition(self) -> Node | None:
        """Under which ``some`` writes an element; None: always."""
        value = self.value
        conditional = self.mode == "some" and isinstance(value, Op) and value.name == "where"
        return value.args[0] if conditional else None

    @property
    def updates(self) -> bool:
        """Whether it leaves elements of the buffer as they were."""
        return self.mode not in ("set", "sum")


@dataclass(frozen=True)
class Body:
    """A loop nest with its writes: one computation, or several that were fused.

    Every store is executed for each point of ``axes`` (and of ``reduce_axes`` too where its
    index or value depends on them); a ``Reduce`` node runs over ``reduce_axes`` for one point of
    ``axes``.  A ``Scan`` runs over them likewise, but has a value for each point; it is there only
    where one axis alone of ``reduce_axes`` is longer than 1, and that axis runs in order.

    Attributes:
        axes: The outer loops, slowest first. All points are independent.
        reduce_axes: The loops that reductions run over, slowest first; also iterated by
            stores of whole rows next to a reduction.
        stores: The writes.
        companions: Reductions that no store needs, but that a code generator computes along with
            another one (the sum beside squared distances from the mean).
    """

    axes: tuple[Symbol, ...]
    reduce_axes: tuple[Symbol, ...]
    stores: tuple[Store, ...]
    companions: tuple[Node, ...] = ()

    @property
    def roots(self) -> tuple[Node, ...]:
        """The values written."""
        return tuple(store.value for store in self.stores)

    @property
    def computed(self) -> tuple[Node, ...]:
        """The values written, the run-time integers that say where, then the companions."""
        places = indirect_nodes(tuple(e for store in self.stores for e in store.index))
        return (*self.roots, *places, *self.companions)

    def reads_for_itself(self, store: Store, buffer: str = "") -> bool:
        """Whether a buffer's old values are read for nothing but the value of ``store``.

        Args:
            store: One of the body's.
            buffer: The buffer; that of the store by default.
        """
        others = [each.value for each in self.stores if each is not store]
        others += [n for n in self.computed if n is not store.value]
        others += [a for n in self.nodes() if isinstance(n, Reduce | Scan) for a in n.args]
        elsewhere = set(walk(tuple(others)))
        name = buffer or store.buffer
        return not any(n in elsewhere for n in self._loads if n.buffer == name)

    # Every stage asks for these many times; a body never changes.
    @functools.cached_property
    def _nodes(self) -> tuple[Node, ...]:
        return tuple(walk(self.computed))

    @functools.cached_property
    def _loads(self) -> tuple[Load, ...]:
        return tuple(node for node in self._nodes if isinstance(node, Load))

    @functools.cached_property
    def _updated(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(store.buffer for store in self.stores if store.updates))

    @functools.cached_property
    def _writes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(store.buffer for store in self.stores))

    @functools.cached_property
    def _reads(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys([*(node.buffer for node in self._loads), *self.updated()]))

    def nodes(self) -> list[Node]:
        """Return every node, arguments before users; those that say where to store as well."""
        return list(self._nodes)

    def loads(self) -> list[Load]:
        """Return every load, each once."""
        return list(self._loads)

    def reads(self) -> tuple[str, ...]:
        """Return the names of the buffers whose contents matter, in order of first use."""
        return self._reads

    def updated(self) -> tuple[str, ...]:
        """Return the names of the buffers of which some elements are changed, in order."""
        return self._updated

    def writes(self) -> tuple[str, ...]:
        """Return the names of the buffers written, in order."""
        return self._writes

    @property
    def has_reduction(self) -> bool:
        """Whether a reduction or a scan occurs."""
        return any(isinstance(node, Reduce | Scan) for node in self.nodes())

    @functools.cached_property
    def products(self) -> tuple[Dot, ...]:
        """Every product of matrices, each once."""
        return tuple(node for node in self._nodes if isinstance(node, Dot))

    @property
    def attends(self) -> bool:
        """Whether it multiplies what comes of a product: attention."""
        return len(self.products) > 1

    @property
    def sums(self) -> tuple[Store, ...]:
        """The stores that add up over rows: ``parts[row // count, column] sums value``.

        Such a body has one outer axis, the row. Its rows are cut into pieces of ``rows_of_piece``,
        each with a sum of its own for every point of the ``reduce_axes`` (a *column*); another
        step adds up the pieces. So one kernel reduces rows and columns, and no two pieces write
        the same memory.
        """
        return tuple(store for store in self.stores if store.mode == "sum")

    @property
    def rows_of_piece(self) -> int:
        """How many rows go into one sum of ``sums``, of which there is at least one."""
        (row,) = self.axes
        counts = {_piece_of(store.index[0], row) for store in self.sums}
        (count,) = counts  # one for all: the pieces are those of the loop over the rows
        return count

    def scans(self) -> list[Scan]:
        """Return every scan, each once."""
        return [node for node in self.nodes() if isinstance(node, Scan)]

    def sizes(self) -> tuple[tuple[Expr, ...], tuple[Expr, ...]]:
        """Return the extents of ``axes`` and of ``reduce_axes``."""
        return axis_sizes(self.axes), axis_sizes(self.reduce_axes)

    def moved(
        self,
        axes: tuple[Symbol, ...],
        reduce_axes: tuple[Symbol, ...],
        mapping: Mapping[Symbol, Expr],
        swap: Callable[[Node], Node | None] | None = None,
    ) -> Body:
        """Return this body over other axes, each old one expressed by ``mapping``."""
        before = self.computed
        moved = dict(zip(before, rewrite(before, mapping, swap), strict=True))
        places: dict[Symbol, Expr] = dict(mapping)
        used = {s for store in self.stores for e in store.index for s in e.symbols()}
        for symbol in sorted(used, key=lambda s: s.serial):
            if isinstance(symbol.payload, Node):
                assert symbol.size is not None
                places[symbol] = indirect(moved[symbol.payload], symbol.size.substitute(mapping))
        stores = tuple(
            replace(
                store,
                index=tuple(e.substitute(places) for e in store.index),
                value=moved[store.value],
            )
            for store in self.stores
        )
        return Body(axes, reduce_axes, stores)

    def origins(self) -> tuple[SourceLine, ...]:
        """Return the user's lines that this body computes, in order of line."""
        lines = {node.source for node in self.nodes() if not is_shared(node)}
        lines |= {store.source for store in self.stores}
        return tuple(sorted((line for line in lines if line), key=lambda s: (s.file, s.line)))


def is_shared(node: Node) -> bool:
    """Whether bodies that have nothing to do with each other share a node.

    Constants and single numbers from memory depend on no loop, so that every body of a program has
    the same node of them, with the line of the first one that asked.
    """
    return isinstance(node, Const) or (isinstance(node, Load) and not node.index)


def _piece_of(expr: Expr, row: Symbol) -> int:
    """Return the constant in ``row // constant``."""
    (monomial,) = expr.terms
    (atom,) = monomial
    assert isinstance(atom, FloorDiv)
    assert atom.numerator == Expr.of(row)
    count = atom.divisor.constant
    assert count is not None
    return count


def axis_sizes(axes: tuple[Symbol, ...]) -> tuple[Expr, ...]:
    """Return the extents of loop axes."""
    return tuple(axis.size if axis.size is not None else Expr.of(1) for axis in axes)


def new_axes(sizes: tuple[Expr, ...], prefix: str = "i") -> tuple[Symbol, ...]:
    """Return fresh loop axes of the given extents."""
    return tuple(Symbol(f"{prefix}{n}", "axis", size) for n, size in enumerate(sizes))


__all__ = [
    "Body",
    "Buffer",
    "Store",
    "axis_sizes",
    "free_axes",
    "new_axes",
]
