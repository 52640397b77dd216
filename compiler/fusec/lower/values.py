"""What lowering hands from operator to operator: tensors as functions of an index."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import torch
from torch import fx

from fusec.abilities import Abilities
from fusec.graph.facts.notes import Note, NoteKind
from fusec.ir import ops
from fusec.ir.body import Body, Buffer, Store, new_axes
from fusec.ir.index import Expr, Symbol, is_nonnegative, provably_less
from fusec.ir.node import Const, Node, Recorder
from fusec.ir.program import PLUMBING, Compute, Extern, ExternKind, Step, TensorRef
from fusec.ir.shapes import contiguous_strides, product
from fusec.report import SourceLine

Index = tuple[Expr, ...]
Shape = tuple[Expr, ...]
Element = Callable[[Index], Node]

# What kernels can hold in registers; anything else stays with ATen.
SUPPORTED_DTYPES = frozenset(
    {
        torch.float64,
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.int64,
        torch.int32,
        torch.int16,
        torch.int8,
        torch.uint8,
        torch.bool,
    }
)


class GraphNotLowered(Exception):
    """A whole graph that must run in eager; the message is the reason."""


class NotLowered(Exception):
    """An operator (or this use of it) has no loop-level form; it becomes an extern call.

    Args:
        why: The reason that the user is shown; or what the call is there for.
        refused: Whether it is one that eager refuses.
    """

    def __init__(self, why: str | ExternKind, *, refused: bool = False) -> None:
        super().__init__(why if isinstance(why, str) else PLUMBING[why])
        self.why = why
        self.refused = refused


@dataclass(frozen=True)
class TensorValue:
    """A tensor of the graph being lowered.

    Attributes:
        shape: Sizes.
        dtype: Element type as torch sees it.
        device: Where it lives.
        at: The element at an index, as a node of ``dtype``.
        ref: Where it lies in memory, or None for what exists only as a function.
    """

    shape: Shape
    dtype: torch.dtype
    device: torch.device
    at: Element
    ref: TensorRef | None = None

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def numel(self) -> Expr:
        """The number of elements."""
        return product(self.shape)

    @property
    def is_number(self) -> bool:
        """Whether it is one number that is known: then it is on no device."""
        return not self.shape and self.ref is None and isinstance(self.at(()), Const)

    def compute(self, index: Index) -> Node:
        """Return the element at ``index`` in the type it is computed in."""
        return ops.cast(self.at(index), ops.compute_dtype(self.dtype))


@dataclass(frozen=True)
class NumberValue(TensorValue):
    """A Python number that is read when a kernel runs: a float64 that gives way to other types."""


@dataclass(frozen=True)
class ResultMeta:
    """What torch's fake tensors say an operator's result looks like.

    Attributes:
        shape: Sizes.
        dtype: Element type.
        device: Where it lives.
        strides: In elements.
        offset: First element in its storage.
    """

    shape: Shape
    dtype: torch.dtype
    device: torch.device
    strides: tuple[Expr, ...]
    offset: Expr

    @property
    def is_dense(self) -> bool:
        """Whether the strides address every element of a gapless block exactly once."""
        dims = [
            (stride, size)
            for stride, size in zip(self.strides, self.shape, strict=True)
            if size.constant != 1
        ]
        if any(size.constant == 0 for _, size in dims):
            return True
        expected = Expr.of(1)
        remaining = list(dims)
        while remaining:
            match = next((d for d in remaining if d[0] == expected), None)
            if match is None:
                return False
            remaining.remove(match)
            expected = expected * match[1]
        return True


Inline = Callable[[fx.GraphModule, Sequence[object], "type[Lowering]"], list[object]]


@dataclass
class Lowering:
    """The state of lowering one graph: what has been emitted so far.

    Attributes:
        recorder: Interns the nodes.
        emulate_rounding: Keep eager's roundings of half-precision intermediate values.
        abilities: Type of torch's device to what kernels of its tensors can do.
        buffers: By name.
        steps: In order.
        result: What the operator being lowered must yield (its first tensor result).
        results: The same for all results of an operator that has several.
        label: The operator's name.
        asked: The name of the operator that the user called, which this one is a part of.
        hint: The user's name for the result, where known.
        notes: What passes over the graph say of the operator.
        where: The user's line.
        stored: Whether a cast is a rounding that eager does for memory's sake.
        rounds: Whether results are rounded as eager rounds them, stored or not.
        storage_offsets: Buffer to the first element that torch's fake tensor has for it, where
            that is not 0 (inputs that are views, and what is laid out like them).
        relaid: Buffers whose strides differ from torch's fake tensor (it had gaps).
        wanted: Which results somebody reads; None where that is not known.
        less: Whether one size is less than another: for all sizes, or guarded. The driver puts it
            there, too.
        inline: Lowers a traced function, given its arguments as values and the class of the
            ``Lowering`` that is to do it; returns its results. The driver puts it there.
    """

    recorder: Recorder
    emulate_rounding: bool = False
    abilities: Callable[[str], Abilities] = lambda device: Abilities()
    buffers: dict[str, Buffer] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    result: ResultMeta | None = None
    results: tuple[ResultMeta | None, ...] = ()
    label: str = ""
    asked: str = ""
    hint: str = ""
    notes: tuple[Note, ...] = ()
    where: SourceLine | None = None
    stored: bool = False
    rounds: bool = False
    storage_offsets: dict[str, Expr] = field(default_factory=dict)
    relaid: dict[str, bool] = field(default_factory=dict)
    wanted: frozenset[int] | None = None
    inline: Inline | None = None
    less: Callable[[Expr, Expr], bool] | None = None

    # -- making values ----------------------------------------------------------------------

    def number(self, target: object, args: Sequence[object]) -> NumberValue | None:
        """Return a Python number that a call gives, where it may be known only in the kernel."""
        return None

    def own_rule(self, target: object, args: Sequence[object]) -> Callable[..., object] | None:
        """Return what lowers a call here, where that is not the rule that all graphs have."""
        return None

    def counted(self, at: Expr, size: Expr) -> Expr:
        """Return a position counted from the start, where Python would count it from the end.

        Raises:
            NotLowered: Which of the two it is depends on numbers that no guard may fix any more.
        """
        if at.constant is not None:
            return at if at.constant >= 0 else at + size
        return at + size if self.is_less(at, Expr.of(0)) else at

    def is_less(self, left: Expr, right: Expr) -> bool:
        """Whether one number is less than another, in every call of what is compiled.

        Raises:
            NotLowered: As ``counted``.
        """
        if provably_less(left, right):
            return True
        if is_nonnegative(left - right):
            return False
        if self.less is None:
            raise NotLowered(f"whether {left} is less than {right} is not known")
        return self.less(left, right)

    def can(self, device: torch.device) -> Abilities:
        """Return what kernels that write tensors of a device can do."""
        return self.abilities(device.type)

    def meta(self, number: int = 0) -> ResultMeta:
        """Return what the ``number``-th result must look like."""
        meta = self.results[number] if self.results else self.result
        assert meta is not None
        return meta

    def new_buffer(self, meta: ResultMeta, prefix: str = "buf") -> Buffer:
        """Add a buffer laid out like ``meta`` (dense; row-major where eager's has gaps)."""
        strides = meta.strides if meta.is_dense else contiguous_strides(meta.shape)
        name = f"{prefix}{len(self.buffers)}"
        hint = self.hint or self.label
        buffer = Buffer(name, meta.shape, strides, meta.dtype, meta.device, hint)
        self.buffers[name] = buffer
        self.relaid[name] = strides != meta.strides
        if meta.offset != 0:  # a scatter into a part of more memory is one, to fake tensors
            self.storage_offsets[name] = meta.offset
        return buffer

    def from_buffer(self, buffer: Buffer) -> TensorValue:
        """Return a buffer as a value."""

        def at(index: Index) -> Node:
            return ops.load(buffer.name, broadcast_index(index, buffer.shape), buffer.dtype)

        ref = TensorRef(buffer.name, buffer.shape, buffer.strides, Expr.of(0), buffer.dtype)
        return TensorValue(buffer.shape, buffer.dtype, buffer.device, at, ref)

    def round(self, node: Node, dtype: torch.dtype) -> Node:
        """Return a computed value in the type of its result, as eager stores it."""
        kept = self.emulate_rounding or self.rounds
        implicit = not kept and ops.compute_dtype(dtype) == node.dtype
        return ops.cast(node, dtype, implicit=implicit)

    def pointwise(self, element: Element, number: int = 0) -> TensorValue:
        """Emit a computation of every element of the ``number``-th result on its own.

        Args:
            element: Index to value; rounded to the result's dtype here.
            number: Which result of the operator it is.
        """
        meta = self.meta(number)
        buffer = self.new_buffer(meta)
        axes = new_axes(meta.shape)
        index = tuple(Expr.of(axis) for axis in axes)
        value = self.round(element(index), meta.dtype)
        self.emit(Body(axes, (), (Store(buffer.name, index, value),)))
        return self.from_buffer(buffer)

    @contextmanager
    def making(self, *metas: ResultMeta) -> Iterator[None]:
        """Lower an intermediate step of an operator, whose results look like ``metas``."""
        outer = (self.result, self.results)
        self.result, self.results = metas[0], metas
        try:
            yield
        finally:  # what is refused halfway is a call of ATen, with the operator's own results
            self.result, self.results = outer

    def emit(self, body: Body) -> None:
        """Append a computation; one over nothing reads nothing and checks nothing."""
        if any(axis.size == 0 for axis in body.axes):
            body = replace(body, stores=tuple(_without_value(store) for store in body.stores))
        self.require_traced_shapes(body)
        self.steps.append(Compute(f"op{len(self.steps)}", body, self.asked or self.label))

    def require_traced_shapes(self, body: Body) -> None:
        """Raise where a rule stores more than torch gave its result room for while it traced.

        What follows was traced with torch's shape, which is not always eager's: torch 2.11 keeps
        the reduced dimension of ``linalg.vector_norm(x, dim=-1)`` where its size is one.

        Raises:
            GraphNotLowered: The ranks differ, or a loop is longer than its dimension. (A shorter
                one is a part of the result, where another body stores the rest.)
        """
        sizes = {Expr.of(axis): axis.size for axis in body.axes}
        for store in body.stores:
            traced = self.buffers[store.buffer].shape
            loops = [sizes.get(expr) for expr in store.index]
            outside = (
                loop is not None
                and loop.constant is not None
                and size.constant is not None
                and loop.constant > size.constant
                for loop, size in zip(loops, traced, strict=False)
            )
            if len(loops) != len(traced) or any(outside):
                raise GraphNotLowered(
                    f"{self.label} has another shape than [{', '.join(map(str, traced))}], which "
                    "torch traced it with"
                )

    def lazy(self, element: Element, meta: ResultMeta | None = None) -> TensorValue:
        """Return a value that exists only as a function (constants, positions, flips)."""
        meta = meta or self.meta()
        return TensorValue(meta.shape, meta.dtype, meta.device, element)

    def realize(self, value: TensorValue, meta: ResultMeta | None = None) -> TensorValue:
        """Return ``value`` with a place in memory, computing it there if it has none.

        Args:
            value: What is to have a place.
            meta: How it lies in eager; row-major if None.
        """
        if value.ref is not None:
            return value
        meta = meta or dense_meta(value.shape, value.dtype, value.device)
        buffer = self.new_buffer(meta)
        axes = new_axes(value.shape)
        index = tuple(Expr.of(axis) for axis in axes)
        self.emit(Body(axes, (), (Store(buffer.name, index, value.at(index)),)))
        return self.from_buffer(buffer)

    def extern(
        self,
        target: Callable[..., object],
        args: Sequence[object],
        kwargs: dict[str, object],
        why: str | ExternKind,
        mutates: tuple[str, ...] = (),
        *,
        refused: bool = False,
    ) -> tuple[TensorValue | None, ...]:
        """Emit a call of an ATen operator; return its tensor results in order.

        Args:
            target: The operator.
            args: Its arguments.
            kwargs: The named ones.
            why: Why no kernel is generated, in words; or what the call is there for.
            mutates: Buffers that it writes to in place.
            refused: Whether eager refuses it, so that it raises.
        """
        operator = ExternKind.REFUSED if refused else ExternKind.OPERATOR
        kind = operator if isinstance(why, str) else why
        reason = why if isinstance(why, str) else PLUMBING[why]
        if self.notes:
            reason = ", ".join([reason, *(note.words for note in self.notes)])
        outputs: list[str] = []
        values: list[TensorValue | None] = []
        metas = self.results or (self.result,)
        placed_args = tuple(self.place(a) for a in args)
        placed_kwargs = {k: self.place(v) for k, v in kwargs.items()}
        for meta in metas:
            if meta is None:
                outputs.append("")
                values.append(None)
                continue
            name = f"buf{len(self.buffers)}"
            # an extern result lies as eager lays it, gaps and all
            buffer = Buffer(
                name, meta.shape, meta.strides, meta.dtype, meta.device, self.hint or self.label
            )
            self.buffers[name] = buffer
            self.storage_offsets[name] = meta.offset
            outputs.append(name)
            values.append(self.from_buffer(buffer))
        self.steps.append(
            Extern(
                f"op{len(self.steps)}",
                target,
                placed_args,
                placed_kwargs,
                tuple(outputs),
                reason,
                mutates,
                self.where,
                kind=kind,
                odd_rows=any(note.kind is NoteKind.ODD_ROWS for note in self.notes),
            )
        )
        return tuple(values)

    def place(self, value: object) -> object:
        """Return an operator's argument as an extern call takes it."""
        if isinstance(value, TensorValue):
            return self.realize(value).ref
        if isinstance(value, (list, tuple)):
            return type(value)(self.place(item) for item in value)
        return value


def _without_value(store: Store) -> Store:
    index = tuple(Expr.of(0) for _ in store.index)
    return replace(store, index=index, value=ops.const(0, store.value.dtype))


def broadcast_index(index: Index, shape: Shape) -> Index:
    """Return the index into ``shape`` that ``index`` of a broadcast result reads."""
    tail = index[len(index) - len(shape) :]
    return tuple(
        Expr.of(0) if size.constant == 1 else i for i, size in zip(tail, shape, strict=True)
    )


def dense_meta(shape: Shape, dtype: torch.dtype, device: torch.device) -> ResultMeta:
    """Return what a new row-major tensor looks like."""
    return ResultMeta(shape, dtype, device, contiguous_strides(shape), Expr.of(0))


__all__ = [
    "SUPPORTED_DTYPES",
    "Element",
    "Index",
    "Lowering",
    "NotLowered",
    "NumberValue",
    "ResultMeta",
    "Shape",
    "Symbol",
    "TensorValue",
    "dense_meta",
]
