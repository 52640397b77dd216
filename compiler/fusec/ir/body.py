"""Bodies and programs: loops over values, and the list of them that a graph becomes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum, auto

import torch

from fusec.ir.index import Expr, FloorDiv, Symbol, product
from fusec.ir.node import (
    Const,
    Dot,
    Load,
    Node,
    Op,
    Reduce,
    Scan,
    current_recorder,
    free_axes,
    indirect,
    indirect_nodes,
    rewrite,
    walk,
)
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


@dataclass(frozen=True)
class TensorRef:
    """A strided view of a buffer, as an extern call takes it.

    Attributes:
        buffer: The buffer's name.
        shape: Sizes of the view.
        strides: Strides of the view, in elements.
        offset: First element, from the start of the buffer.
        apart: Whether it is to be a tensor of its own, though it may lie as the whole buffer does:
            a result, beside another one of the same memory.
    """

    buffer: str
    shape: tuple[Expr, ...]
    strides: tuple[Expr, ...]
    offset: Expr
    dtype: torch.dtype
    apart: bool = False

    def is_all_of(self, buffer: Buffer) -> bool:
        """Whether the buffer's own tensor may stand for it."""
        whole = self.shape == buffer.shape and self.strides == buffer.strides and self.offset == 0
        return whole and self.dtype == buffer.dtype and not self.apart


# Values of a kernel's tunables, and what is wanted of its loops.
Settings = tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Compute:
    """A step that runs a generated kernel.

    Attributes:
        name: Unique in its program.
        body: What it computes.
        label: A few words, from the operators it came from: ``gelu``, ``layer_norm``.
        strategy: How the kernel is to be written, where a measurement has chosen; see the emitter.
        settings: Values of tunables, likewise.
    """

    name: str
    body: Body
    label: str = ""
    strategy: str = ""
    settings: Settings = ()

    def reads(self) -> tuple[str, ...]:
        """Return the buffers that it reads."""
        return self.body.reads()

    def writes(self) -> tuple[str, ...]:
        """Return the buffers that it writes."""
        return self.body.writes()


class ExternKind(Enum):
    """What a call is there for: an operator of the user's, or something that the program needs."""

    OPERATOR = auto()
    REFUSED = auto()  # an operator that raises: eager has no kernel for its types
    OWNED_TENSOR = auto()
    RANDOM_SEED = auto()
    UNINITIALIZED = auto()
    PROMISE = auto()
    GAPS = auto()


# What is said of a call that the user did not ask for.
PLUMBING = {
    ExternKind.OWNED_TENSOR: "a tensor that the graph owns",
    ExternKind.RANDOM_SEED: "the seed of the graph's random numbers",
    ExternKind.UNINITIALIZED: "memory that nothing has written yet",
    ExternKind.PROMISE: (
        "a promise of the program's, which is looked at before anything relies on it"
    ),
    ExternKind.GAPS: "a result lies in memory as in eager, with gaps",
}


@dataclass(frozen=True)
class Extern:
    """A step that calls an operator of ATen (or any callable) on tensors.

    Attributes:
        name: Unique in its program.
        target: The callable.
        args: Positional arguments: ``TensorRef``, ``Expr`` for symbolic integers, plain values,
            and lists or tuples of those.
        kwargs: Likewise by name.
        outputs: Names of the buffers that the result binds to, in order; an empty name where a
            part of the result is used by nobody.
        reason: Why no kernel is generated, in words; nothing is decided on them.
        mutates: Buffers that it writes to in place.
        where: The user's line.
        body: The same as a loop nest, where a kernel could do it as well; or None.
        label: The operator's name.
        kind: What it is there for.
        odd_rows: Whether it is a product that writes rows which are no multiples of 16 bytes, and
            of which a kernel is to take the place.
    """

    name: str
    target: Callable[..., object]
    args: tuple[object, ...]
    kwargs: Mapping[str, object]
    outputs: tuple[str, ...]
    reason: str
    mutates: tuple[str, ...] = ()
    where: SourceLine | None = None
    body: Body | None = None
    label: str = ""
    kind: ExternKind = ExternKind.OPERATOR
    odd_rows: bool = False

    def reads(self) -> tuple[str, ...]:
        """Return the buffers that it reads."""
        found = (ref.buffer for ref in tensor_refs((self.args, tuple(self.kwargs.values()))))
        return tuple(dict.fromkeys(found))

    def writes(self) -> tuple[str, ...]:
        """Return the buffers that it makes or changes."""
        return tuple(name for name in self.outputs if name) + self.mutates

    @property
    def has_unknown_size(self) -> bool:
        """Whether the sizes of what it returns depend on values, whatever was promised of them."""
        return torch.Tag.dynamic_output_shape in getattr(self.target, "tags", ())

    @property
    def is_plumbing(self) -> bool:
        """Whether it is no operator of the user's, but something that the program needs."""
        return self.kind in PLUMBING


Step = Compute | Extern


def tensor_refs(value: object) -> Iterator[TensorRef]:
    """Yield the tensor references inside nested arguments."""
    if isinstance(value, TensorRef):
        yield value
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from tensor_refs(item)
    elif isinstance(value, dict):
        yield from tensor_refs(tuple(value.values()))


@dataclass(frozen=True)
class Program:
    """A whole graph at loop level.

    Attributes:
        inputs: Names of the graph's inputs in order: buffers, or integers.
        sizes: Symbolic size to where its value is found at run time: an integer input's name and
            None, or a tensor input's name and one of its dimensions.
        buffers: Every buffer by name, inputs included.
        steps: In an order that respects the data flow.
        outputs: What the graph returns: ``TensorRef``, ``Expr``, or a plain value (None...).
        notes: What the user should know of it.
        once: Buffers whose elements no kernel may compute again, because they are compared with
            numbers that were chosen from them.
    """

    inputs: tuple[str, ...]
    sizes: Mapping[Symbol, tuple[str, int | None]]
    buffers: Mapping[str, Buffer]
    steps: tuple[Step, ...]
    outputs: tuple[object, ...]
    notes: tuple[str, ...] = field(default=())
    once: frozenset[str] = frozenset()

    def output_buffers(self) -> frozenset[str]:
        """Return the buffers that outlive the program's run as outputs."""
        return frozenset(ref.buffer for ref in tensor_refs(self.outputs))

    def changed_inputs(self) -> frozenset[str]:
        """Return the inputs that the program writes."""
        written = {name for step in self.steps for name in step.writes()}
        return frozenset(written & set(self.inputs))


__all__ = [
    "Body",
    "Buffer",
    "Compute",
    "Extern",
    "Program",
    "Step",
    "Store",
    "TensorRef",
    "axis_sizes",
    "free_axes",
    "new_axes",
    "tensor_refs",
]
