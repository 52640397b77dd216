"""Value graphs: what a kernel computes for one element, recorded once.

A body is written define-by-run: ordinary Python calls functions of ``fusec.ir.ops`` on symbolic
indices, and what comes out is a graph of these nodes.  Printing, cost, the reference
interpreter, Triton and C++ are all interpretations of this one graph.

Nodes are immutable and *interned*: within one ``Recorder`` two nodes with the same meaning are the
same object.  That is common-subexpression elimination for free, makes comparison an identity test,
and lets every pass memoize on the node itself.

The dtype of a node is the type its value has in registers.  Half-precision values are loaded,
cast to float32, computed, and cast back when they are stored; a cast marked ``implicit`` is one
that eager does only because it must put its result into memory, so fusion may drop it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

import numpy
import torch

from fusec.ir.index import Expr, Symbol, lower_bound, upper_bound

if TYPE_CHECKING:
    from fusec.report import SourceLine

Number = int | float | bool


class Node:
    """A value for one element of the iteration space.

    Attributes:
        dtype: Its type in registers.
        source: The user's line that asked for it; None where there is none.
        args: The nodes it is computed from.
    """

    __slots__ = ("__weakref__", "args", "dtype", "source")

    def __init__(self, dtype: torch.dtype, args: tuple[Node, ...]) -> None:
        self.dtype = dtype
        self.args = args
        self.source: SourceLine | None = None

    def rebuild(self, args: tuple[Node, ...], move: Callable[[Expr], Expr]) -> Node:
        """Return this node over other arguments, its index expressions mapped by ``move``."""
        raise NotImplementedError

    def exprs(self) -> tuple[Expr, ...]:
        """Return the index expressions that this node itself holds."""
        return ()


class Const(Node):
    """A number known at compile time."""

    __slots__ = ("value",)

    def __init__(self, value: Number, dtype: torch.dtype) -> None:
        super().__init__(dtype, ())
        self.value = value

    def rebuild(self, args: tuple[Node, ...], move: Callable[[Expr], Expr]) -> Node:
        """Return itself: a constant depends on nothing."""
        return self

    def __repr__(self) -> str:
        return repr(self.value)


class IndexValue(Node):
    """The value of an index expression, as data (arange, one-hot, masks)."""

    __slots__ = ("expr",)

    def __init__(self, expr: Expr, dtype: torch.dtype) -> None:
        super().__init__(dtype, indirect_nodes((expr,)))
        self.expr = expr

    def rebuild(self, args: tuple[Node, ...], move: Callable[[Expr], Expr]) -> Node:
        """Return the value of the moved expression."""
        return index_value(move(self.expr), self.dtype)

    def exprs(self) -> tuple[Expr, ...]:
        """Return the expression."""
        return (self.expr,)


class Load(Node):
    """An element of a buffer; where ``mask`` is false nothing is read and it is ``other``.

    Attributes:
        buffer: The buffer's name.
        index: One expression a dimension of the buffer, within bounds where ``mask`` holds.
        mask: A bool node, or None for always.
        other: The value where the mask is false.
    """

    __slots__ = ("buffer", "index", "mask", "other")

    def __init__(
        self,
        buffer: str,
        index: tuple[Expr, ...],
        dtype: torch.dtype,
        mask: Node | None,
        other: Number,
    ) -> None:
        super().__init__(dtype, indirect_nodes(index) + (() if mask is None else (mask,)))
        self.buffer = buffer
        self.index = index
        self.mask = mask
        self.other = other

    def rebuild(self, args: tuple[Node, ...], move: Callable[[Expr], Expr]) -> Node:
        """Return a load at the moved index with the rebuilt mask."""
        mask = None if self.mask is None else args[-1]
        index = tuple(move(e) for e in self.index)
        return load(self.buffer, index, self.dtype, mask, self.other)

    def exprs(self) -> tuple[Expr, ...]:
        """Return the index."""
        return self.index


class Op(Node):
    """Scalar maths: a name of ``scalars.SCALARS`` over argument values.

    A ``where`` has the arguments (condition, then, else).
    """

    __slots__ = ("name",)

    def __init__(self, name: str, args: tuple[Node, ...], dtype: torch.dtype) -> None:
        super().__init__(dtype, args)
        self.name = name

    def rebuild(self, args: tuple[Node, ...], move: Callable[[Expr], Expr]) -> Node:
        """Return the same operation on other arguments."""
        return op(self.name, args, self.dtype)


class Cast(Node):
    """A conversion of the argument to ``dtype``.

    Attributes:
        implicit: Whether eager rounds here only because it stores the value.
        bitcast: Whether the bits are reinterpreted rather than the value converted.
    """

    __slots__ = ("bitcast", "implicit")

    def __init__(self, arg: Node, dtype: torch.dtype, implicit: bool, bitcast: bool) -> None:
        super().__init__(dtype, (arg,))
        self.implicit = implicit
        self.bitcast = bitcast

    def rebuild(self, args: tuple[Node, ...], move: Callable[[Expr], Expr]) -> Node:
        """Return the same conversion of another argument."""
        return cast(args[0], self.dtype, implicit=self.implicit, bitcast=self.bitcast)


class Reduce(Node):
    """A reduction of the argument over ``axes``.

    Kinds: ``sum``, ``prod``, ``max``, ``min`` (NaN wins, as in torch), ``any``, ``all``, ``xor``,
    ``argmax``, ``argmin`` (the first position of the extreme value in row-major order of
    ``axes``, NaN wins; dtype int64).

    Attributes:
        kind: One of the above.
        axes: The reduced axes; the result no longer depends on them.
    """

    __slots__ = ("axes", "kind")

    def __init__(self, kind: str, arg: Node, axes: tuple[Symbol, ...], dtype: torch.dtype) -> None:
        super().__init__(dtype, (arg,))
        self.kind = kind
        self.axes = axes

    def rebuild(self, args: tuple[Node, ...], move: Callable[[Expr], Expr]) -> Node:
        """Return the same reduction of another argument, over the moved axes."""
        axes: list[Symbol] = []
        for axis in self.axes:
            moved = move(Expr.of(axis))
            onto = (s for s in moved.symbols() if s.kind == "axis")
            axes.extend(sorted(onto, key=lambda s: s.serial))
        unique = tuple(dict.fromkeys(axes))
        return reduce(self.kind, args[0], unique, self.dtype)


class Dot(Reduce):
    """A product of matrices: the sum over ``axes`` of its first argument times its second.

    The arguments have the type that they are multiplied in, half precision too: tensor cores
    take them as they lie in memory. What they give is added up in ``dtype``.

    Attributes:
        precision: How float32 is multiplied: ``ieee``, or ``tf32`` where the user allows it.
    """

    __slots__ = ("precision",)

    def __init__(
        self, left: Node, right: Node, axes: tuple[Symbol, ...], dtype: torch.dtype, precision: str
    ) -> None:
        super().__init__("dot", left, axes, dtype)
        self.args = (left, right)
        self.precision = precision

    def rebuild(self, args: tuple[Node, ...], move: Callable[[Expr], Expr]) -> Node:
        """Return the same product of other arguments, over the moved axes."""
        axes: dict[Symbol, None] = {}
        for axis in self.axes:
            axes |= dict.fromkeys(s for s in move(Expr.of(axis)).symbols() if s.kind == "axis")
        return dot(args[0], args[1], tuple(axes), self.dtype, self.precision)


class Scan(Node):
    """An inclusive scan of the argument along ``axis``: at each position, all up to it combined.

    Kinds: ``sum``, ``prod``, ``logsumexp``; ``max``, ``min`` (NaN wins, and of equal values the
    last: -0.0 after 0.0), ``argmax``, ``argmin`` (the position of what ``max`` and ``min`` give;
    dtype int64).

    Unlike a reduction's, its value depends on the axis, which therefore is run over in order.

    Attributes:
        kind: One of the above.
        axis: The axis that it runs along, one of the body's ``reduce_axes``.
    """

    __slots__ = ("axis", "kind")

    def __init__(self, kind: str, arg: Node, axis: Symbol, dtype: torch.dtype) -> None:
        super().__init__(dtype, (arg,))
        self.kind = kind
        self.axis = axis

    def rebuild(self, args: tuple[Node, ...], move: Callable[[Expr], Expr]) -> Node:
        """Return the same scan of another argument, along the moved axis.

        An axis moves to another one as a whole, or to the one position that it has.
        """
        place = move(Expr.of(self.axis))
        if place.constant == 0:
            return single_scan(self.kind, args[0], self.dtype)
        (axis,) = place.symbols()
        assert place == Expr.of(axis), "a scan's axis is taken apart"
        return scan(self.kind, args[0], axis, self.dtype)

    def exprs(self) -> tuple[Expr, ...]:
        """Return the position along the axis."""
        return (Expr.of(self.axis),)


# -- recording ----------------------------------------------------------------------------


class Recorder:
    """The intern table of one compilation, and the user's line being lowered."""

    def __init__(self) -> None:
        self.table: dict[tuple[object, ...], Node] = {}
        self.source: SourceLine | None = None
        self.indirects: dict[tuple[Node, Expr], Symbol] = {}
        self.bounds: dict[Node, tuple[float, float] | None] = {}  # see ``ir.bounds``

    def intern(self, key: tuple[object, ...], make: Callable[[], Node]) -> Node:
        """Return the node for ``key``, making it the first time."""
        node = self.table.get(key)
        if node is None:
            node = make()
            node.source = self.source
            self.table[key] = node
        return node


_recorder: ContextVar[Recorder] = ContextVar("fusec_recorder")


def current_recorder() -> Recorder:
    """Return the recorder in force, making one where there is none."""
    try:
        return _recorder.get()
    except LookupError:
        recorder = Recorder()
        _recorder.set(recorder)
        return recorder


@contextmanager
def recording(recorder: Recorder | None = None) -> Iterator[Recorder]:
    """Intern nodes in ``recorder`` (a fresh one by default) within the block."""
    recorder = recorder or Recorder()
    token = _recorder.set(recorder)
    try:
        yield recorder
    finally:
        _recorder.reset(token)


@contextmanager
def source_line(line: SourceLine | None) -> Iterator[None]:
    """Mark the nodes recorded within the block as asked for by ``line``."""
    recorder = current_recorder()
    before, recorder.source = recorder.source, line
    try:
        yield
    finally:
        recorder.source = before


def const(value: Number, dtype: torch.dtype) -> Const:
    """Return a constant of ``dtype``; the value is converted as torch would."""
    if dtype == torch.bool:
        value = bool(value)
    elif dtype.is_floating_point:
        value = float(value)
    else:
        value = wrapped(int(value), dtype)
    # repr tells 0.0 from -0.0 and puts all NaNs in one entry; == would not.
    key = ("const", repr(value), dtype)
    node = current_recorder().intern(key, lambda: Const(value, dtype))
    assert isinstance(node, Const)
    return node


def wrapped(value: int, dtype: torch.dtype) -> int:
    """Return what is left of an integer in ``dtype``: its lowest bits."""
    bits = dtype.itemsize * 8
    value &= (1 << bits) - 1
    return value - (1 << bits) if dtype.is_signed and value >> (bits - 1) else value


def float32_value(value: Number) -> float:
    """Return the float32 that is nearest to a number."""
    with numpy.errstate(over="ignore"):
        return float(numpy.float32(value))


def known_value(node: Const) -> Number:
    """Return the number that a constant is when the program runs: in its own precision."""
    return float32_value(node.value) if node.dtype == torch.float32 else node.value


def index_value(expr: Expr, dtype: torch.dtype) -> Node:
    """Return an index expression's value as data."""
    if expr.constant is not None:
        return const(expr.constant, dtype)
    key = ("index", expr, dtype)
    return current_recorder().intern(key, lambda: IndexValue(expr, dtype))


def load(
    buffer: str,
    index: tuple[Expr, ...],
    dtype: torch.dtype,
    mask: Node | None = None,
    other: Number = 0,
) -> Node:
    """Return an element of a buffer; see ``Load``."""
    if isinstance(mask, Const):
        if not mask.value:
            return const(other, dtype)
        mask = None
    key = ("load", buffer, index, dtype, mask, repr(other))
    return current_recorder().intern(key, lambda: Load(buffer, index, dtype, mask, other))


def op(name: str, args: tuple[Node, ...], dtype: torch.dtype) -> Node:
    """Return scalar maths on nodes; ``ops`` has the typed and simplifying forms."""
    key = ("op", name, args, dtype)
    return current_recorder().intern(key, lambda: Op(name, args, dtype))


def cast(arg: Node, dtype: torch.dtype, *, implicit: bool = False, bitcast: bool = False) -> Node:
    """Return ``arg`` converted to ``dtype``; drops conversions that change nothing."""
    if arg.dtype == dtype:
        return arg
    if not bitcast:
        # What NaN and infinity are as an integer is the device's own business.
        if isinstance(arg, Const) and (dtype.is_floating_point or not _is_special(arg)):
            return const(_convert(arg.value, arg.dtype, dtype), dtype)
        if isinstance(arg, IndexValue) and _holds(dtype, arg.expr):
            return index_value(arg.expr, dtype)
        # An implicit rounding that is undone at once is one eager did for its memory only.
        if isinstance(arg, Cast) and arg.implicit and arg.args[0].dtype == dtype:
            return arg.args[0]
    key = ("cast", arg, dtype, implicit, bitcast)
    return current_recorder().intern(key, lambda: Cast(arg, dtype, implicit, bitcast))


def _holds(dtype: torch.dtype, expr: Expr) -> bool:
    """Whether a position is the same number in a narrower type, whatever the loops are at."""
    if dtype != torch.int32:
        return dtype == torch.int64
    low, high = lower_bound(expr), upper_bound(expr)
    return low is not None and high is not None and low >= -(2**31) and high < 2**31


def _is_special(node: Const) -> bool:
    return node.value != node.value or node.value in (float("inf"), float("-inf"))


def _convert(value: Number, source: torch.dtype, target: torch.dtype) -> Number:
    if target == torch.bool:
        return bool(value)
    # A constant may hold more digits than its own type does: they are rounded away first.
    converted = torch.tensor(value, dtype=source).to(target).item()
    return float(converted) if target.is_floating_point else int(converted)


def reduce(kind: str, arg: Node, axes: tuple[Symbol, ...], dtype: torch.dtype) -> Node:
    """Return a reduction of ``arg`` over ``axes``; see ``Reduce``. Over none it is ``arg``."""
    if not axes:
        return const(0, dtype) if kind.startswith("arg") else cast(arg, dtype)
    key = ("reduce", kind, arg, axes, dtype)
    return current_recorder().intern(key, lambda: Reduce(kind, arg, axes, dtype))


def dot(
    left: Node, right: Node, axes: tuple[Symbol, ...], dtype: torch.dtype, precision: str = "ieee"
) -> Node:
    """Return a product of matrices; see ``Dot``. Both arguments have one type."""
    assert left.dtype == right.dtype
    key = ("dot", left, right, axes, dtype, precision)
    make = current_recorder().intern
    return make(key, lambda: Dot(left, right, axes, dtype, precision))


def scan(kind: str, arg: Node, axis: Symbol, dtype: torch.dtype) -> Node:
    """Return a scan of ``arg`` along ``axis``; see ``Scan``."""
    if axis.size == 1:
        return single_scan(kind, arg, dtype)
    key = ("scan", kind, arg, axis, dtype)
    return current_recorder().intern(key, lambda: Scan(kind, arg, axis, dtype))


def single_scan(kind: str, arg: Node, dtype: torch.dtype) -> Node:
    """Return a scan of one element: itself, but sums and log-sum-exps make 0.0 of -0.0."""
    if kind.startswith("arg"):
        return const(0, dtype)
    value = cast(arg, dtype)
    if kind in ("sum", "logsumexp") and dtype.is_floating_point:
        return op("add", (const(0, dtype), value), dtype)
    return value


def indirect(node: Node, size: Expr) -> Expr:
    """Return an index expression for an integer computed at run time, 0 <= it < ``size``.

    The caller has made sure of the range (see ``ops.checked_index``).  What turns out to be a
    position of the loops is no run-time integer.
    """
    if isinstance(node, IndexValue):
        return node.expr
    if isinstance(node, Const):
        return Expr.of(int(node.value))
    recorder = current_recorder()
    symbol = recorder.indirects.get((node, size))
    if symbol is None:
        symbol = Symbol(f"t{len(recorder.indirects)}", "indirect", size, payload=node)
        recorder.indirects[(node, size)] = symbol
    return Expr.of(symbol)


def indirect_nodes(exprs: tuple[Expr, ...]) -> tuple[Node, ...]:
    """Return the nodes whose values occur as indices in ``exprs``, in a stable order."""
    found = {symbol for expr in exprs for symbol in expr.symbols() if symbol.kind == "indirect"}
    ordered = sorted(found, key=lambda s: s.serial)
    return tuple(s.payload for s in ordered if isinstance(s.payload, Node))
