"""From a loop nest to the tile that one Triton program computes.

The axes of a body are flattened into at most two *dimensions* of a tile: the independent ones
(``x``, or ``x`` and ``y`` for a transposing copy) and the reduced ones (``r``).  The index
expressions of the loop IR do the rest: ``i // 64 * 64 + i % 64`` simplifies to ``i`` by itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from fusec.codegen.common.identities import identity
from fusec.ir.body import Body, Buffer
from fusec.ir.checks import is_check
from fusec.ir.index import Atom, Expr, FloorDiv, Mod, Symbol, is_nonnegative, lower_bound
from fusec.ir.node import Const, Load, Node, Reduce, cast, const, reduce
from fusec.ir.shapes import product, unflatten
from fusec.ir.walk import free_axes, rewrite

LIMIT = 2**31 - 2**24  # positions in the last, partly filled tile must not overflow either
REACHING_LIMIT = 2**28  # the same where there are positions that reach further, by ``times_reach``
MOST_TIMES = 7  # times REACHING_LIMIT and a few more still are 32 bits


@dataclass(frozen=True)
class Dim:
    """One dimension of a tile.

    Attributes:
        symbol: Its index, an axis of the moved body.
        size: Its extent.
        index: The index variable in the text.
        block: The constant that says how many a program takes; empty where it takes one.
        mask: The variable that says which are inside; empty where all are.
        place: Its position in the tile; -1 where the index is a scalar.
    """

    symbol: Symbol
    size: Expr
    index: str
    block: str
    mask: str
    place: int

    @property
    def line(self) -> str:
        """The index before it is put into its place of the tile: a vector."""
        return f"{self.index}s"

    @property
    def line_mask(self) -> str:
        """The mask that goes with it; empty where there is none."""
        return f"{self.line}_inside" if self.mask else ""

    def spread(self, rank: int) -> str:
        """Return the subscript that puts a vector into its place of the tile."""
        if rank == 1 or self.place < 0:
            return ""
        return "[:, None]" if self.place == 0 else "[None, :]"


@dataclass(frozen=True)
class Tile:
    """What a program computes.

    Attributes:
        body: The body over the tile's own axes: one for each dimension.
        outer: The dimensions of independent points.
        inner: The reduced dimension, or None.
        rank: The number of dimensions that are not scalars.
        walk: A reduced dimension outside of ``inner`` that a loop takes one by one, or None.
    """

    body: Body
    outer: tuple[Dim, ...]
    inner: Dim | None
    rank: int
    walk: Dim | None = None

    @property
    def dims(self) -> tuple[Dim, ...]:
        """All dimensions."""
        return self.outer + tuple(d for d in (self.walk, self.inner) if d is not None)

    @property
    def reduced(self) -> frozenset[Symbol]:
        """The indices that reductions run over."""
        return frozenset(d.symbol for d in (self.walk, self.inner) if d is not None)

    def dim_of(self, symbol: Symbol) -> Dim | None:
        """Return the dimension whose index ``symbol`` is."""
        return next((d for d in self.dims if d.symbol is symbol), None)

    def shape(self, dims: frozenset[Dim]) -> str:
        """Return the shape of a value that depends on ``dims``, in the text's constants."""
        places = {d.place: d.block for d in dims if d.place >= 0}
        return "[" + ", ".join(places.get(p, "1") for p in range(self.rank)) + "]"

    def is_lined(self, dim: Dim) -> bool:
        """Whether something is loaded along the rows of the tile alone: then as a vector.

        A column of the tile's own layout would be loaded by each thread as often as the thread
        has elements in a row.
        """
        if self.rank != 2 or dim.place != 0:
            return False
        return any(self.line_of(load) is dim for load in self.body.loads())

    def line_of(self, load: Load) -> Dim | None:
        """Return the dimension along the rows of the tile, if a load depends on it alone."""
        if self.rank != 2 or load.mask is not None or payloads(load.index):
            return None
        symbols = {s for e in load.index for s in e.symbols() if s.kind == "axis"}
        (dim,) = (self.dim_of(s) for s in symbols) if len(symbols) == 1 else (None,)
        return dim if dim is not None and dim.place == 0 else None

    def with_dims(self, **changes: Dim) -> Tile:
        """Return the tile with dimensions replaced, by the name of their index."""
        outer = tuple(changes.get(d.index, d) for d in self.outer)
        inner = changes.get(self.inner.index, self.inner) if self.inner is not None else None
        return replace(self, outer=outer, inner=inner)


def flatten_axes(axes: Sequence[Symbol], name: str) -> tuple[Symbol, dict[Symbol, Expr]]:
    """Return one axis that runs over all of ``axes``, and what each of them is of it."""
    sizes = [axis.size if axis.size is not None else Expr.of(1) for axis in axes]
    flat = Symbol(name, "axis", product(sizes))
    position = Expr.of(0) if flat.size == 1 else Expr.of(flat)
    return flat, dict(zip(axes, unflatten(position, sizes), strict=True))


def move(
    body: Body,
    groups: Sequence[Sequence[Symbol]],
    reduced: Sequence[Symbol],
    walked: Sequence[Symbol] = (),
) -> Body:
    """Return ``body`` over one axis for each of ``groups``, and one for ``reduced`` if any.

    Those of ``walked``, if any, become one more reduced axis, outside of ``reduced``. Axes of
    extent 1 vanish.
    """
    mapping: dict[Symbol, Expr] = {}
    outer = []
    for number, group in enumerate(groups):
        flat, parts = flatten_axes(group, f"x{number}")
        mapping.update(parts)
        outer.append(flat)
    inner: tuple[Symbol, ...] = ()
    for several, name in ((walked, "p"), (reduced, "r")):
        if several:
            flat, parts = flatten_axes(several, name)
            mapping.update(parts)
            inner = (*inner, flat)

    def keep(node: Node) -> Node | None:
        # an axis of extent 1 vanishes from the indices, not from the reduction
        if isinstance(node, Reduce) and node.axes != inner:
            return reduce(node.kind, node.args[0], inner, node.dtype)
        return None

    return body.moved(tuple(outer), inner, mapping, keep)


def without_empty_rows(body: Body) -> Body:
    """Return ``body`` without reductions over nothing at all, or over no axes."""
    empty = product(a.size for a in body.reduce_axes if a.size is not None).constant == 0
    if body.reduce_axes and not empty:
        return body

    def folded(node: Node) -> Node | None:
        if not isinstance(node, Reduce):
            return None
        if empty:
            return const(identity(node.kind, node.args[0].dtype), node.dtype)
        return (
            const(0, node.dtype) if node.kind.startswith("arg") else cast(node.args[0], node.dtype)
        )

    reduced = set(body.reduce_axes)
    free = free_axes(body.computed)
    stores = [
        s
        for s in body.stores
        if not reduced & (free[s.value] | {x for e in s.index for x in e.symbols()})
    ]
    values = rewrite(tuple(s.value for s in stores), {}, folded)
    stores = [replace(s, value=v) for s, v in zip(stores, values, strict=True)]
    return Body(body.axes, (), tuple(stores))


def payloads(index: tuple[Expr, ...]) -> list[Node]:
    """Return the run-time integers that occur in an index."""
    found = {s for e in index for s in e.symbols() if isinstance(s.payload, Node)}
    ordered = sorted(found, key=lambda s: s.serial)
    return [s.payload for s in ordered if isinstance(s.payload, Node)]


def index_guards(index: tuple[Expr, ...]) -> list[Node]:
    """Return the conditions under which computed indices are in range: the checks of them."""
    found: list[Node] = []
    stack = payloads(index)
    seen: set[Node] = set()
    while stack:
        node = stack.pop()
        if node in seen or isinstance(node, Load):
            continue
        seen.add(node)
        if is_check(node):
            found.append(node.args[0])
        stack.extend(node.args)
    return [n for n in found if not (isinstance(n, Const) and n.value)]


def strides_of(body: Body, buffers: Mapping[str, Buffer], axis: Symbol) -> list[int]:
    """Return ``axis``'s stride in every access, loads first.

    0 where the access does not depend on it, -1 where the stride is no constant (symbolic
    sizes, or an index that is computed or folded).
    """
    found = []
    accesses = [(load.buffer, load.index) for load in body.loads()]
    accesses += [(store.buffer, store.index) for store in body.stores]
    for name, index in accesses:
        offset = buffers[name].offset(index)
        if axis not in offset.symbols():
            found.append(0)
        elif offset.is_affine_in(axis) and offset.coefficient(axis).constant is not None:
            found.append(abs(offset.coefficient(axis).constant or 0))
        else:
            found.append(-1)
    return found


def by_stride(body: Body, buffers: Mapping[str, Buffer], axes: Sequence[Symbol]) -> list[Symbol]:
    """Return ``axes`` slowest first, as memory is laid out: by what they step over.

    The largest access decides, a store before a load of the same size; where strides are not
    known the given order stands.
    """
    accesses = [(store.buffer, store.index) for store in body.stores]
    accesses += [(load.buffer, load.index) for load in body.loads()]
    best: tuple[int, list[int]] | None = None
    for name, index in accesses:
        offset = buffers[name].offset(index)
        steps = [abs(offset.coefficient(axis).constant or 0) for axis in axes]
        if 0 in steps:
            continue  # folded, symbolic, or broadcast along one of them
        weight = buffers[name].bytes
        if best is None or weight > best[0]:
            best = (weight, steps)
    if best is None:
        return list(axes)
    steps_of = dict(zip(axes, best[1], strict=True))
    return sorted(axes, key=lambda axis: -steps_of[axis])


def largest_offset(buffer: Buffer) -> Expr:
    """Return the number of elements from the first to the last of ``buffer``, both included."""
    total = Expr.of(1)
    for size, stride in zip(buffer.shape, buffer.strides, strict=True):
        total = total + (size - 1) * stride
    return total


def extents(body: Body, buffers: Mapping[str, Buffer]) -> list[Expr]:
    """Return all that an index may grow to: element offsets and numbers of points."""
    found = [largest_offset(buffers[name]) for name in body.reads() + body.writes()]
    found += [axis.size for axis in body.axes + body.reduce_axes if axis.size is not None]
    return list(dict.fromkeys(found))


def times_reach(expr: Expr, reach: Sequence[Expr]) -> int | None:
    """Return how many times the largest of ``reach`` a position of symbolic sizes is at most.

    On both sides of zero, a few elements more; None where nothing is known.  ``2 * i - s0 + 1``,
    say, with ``i`` an axis and ``s0`` a tensor's size, is within three times: such a position does
    not need 64 bits where tensors do not, and to divide 64 takes five times as long as 32.

    Args:
        expr: The position.
        reach: What ``extents`` says of the body.
    """
    total = 0
    for monomial, coefficient in expr.terms.items():
        if not monomial:
            if abs(coefficient) >= 2**20:
                return None
            continue
        (atom, *more) = monomial
        each = _atom_times_reach(atom, reach) if not more else None
        if each is None:
            return None
        total += abs(coefficient) * each
    return total


def _atom_times_reach(atom: Atom, reach: Sequence[Expr]) -> int | None:
    if isinstance(atom, FloorDiv | Mod):
        return times_reach(atom.numerator, reach) if is_nonnegative(atom.numerator) else None
    if atom.kind == "axis" and atom.size is not None:
        known = atom.size.constant  # ``launch`` asks of symbolic sizes alone
        fits = atom.size in reach if known is None else known < REACHING_LIMIT
        return 1 if fits else None
    if atom.kind != "size" or atom.low < 0:
        return None
    for size in reach:
        # a product with it in it, the other factors of which are not zero
        if len(size.terms) != 1:
            continue
        ((monomial, factor),) = size.terms.items()
        if factor >= 1:
            others = [each for each in monomial if each is not atom]
            if len(others) < len(monomial) and all(
                (lower_bound(Expr({(each,): 1})) or 0) >= 1 for each in others
            ):
                return 1
    return None
