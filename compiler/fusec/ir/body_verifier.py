"""What a body must satisfy: names, types, places in bounds, no load after an overwrite."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch

from fusec.ir.body import Body, Buffer, Store
from fusec.ir.checks import is_check
from fusec.ir.index import Expr, Monomial, Symbol, upper_bound
from fusec.ir.node import Cast, Const, Dot, Load, Node, Op, Reduce, Scan
from fusec.ir.scalars import SCALARS
from fusec.ir.walk import free_axes

MODES = frozenset("set sum put some add mul max min".split())
REDUCTIONS = frozenset("sum prod max min any all xor argmax argmin dot".split())
SCANS = frozenset("sum prod logsumexp max min argmax argmin".split())
_HALVES = (torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong.

    Attributes:
        kind: Which rule is broken, in a word or two with underscores.
        where: The step, or the graph's node.
        text: What is wrong with it.
    """

    kind: str
    where: str
    text: str

    def __str__(self) -> str:
        return f"{self.where}: {self.text} [{self.kind}]"


def body_problems(body: Body, buffers: Mapping[str, Buffer], where: str = "") -> list[Problem]:
    """Return what is wrong with a loop nest over buffers."""
    return [
        Problem(each.kind, where or each.where, each.text)
        for each in (*_axes(body), *_stores(body, buffers), *_nodes(body, buffers))
    ]


def _axes(body: Body) -> Iterator[Problem]:
    every = (*body.axes, *body.reduce_axes)
    for axis, count in Counter(every).items():
        if count > 1:
            yield Problem("repeated_axis", "", f"the axis {axis} is there twice")
        if axis.kind != "axis" or axis.size is None:
            yield Problem("axis_without_size", "", f"{axis} is not an axis with a size")


def _stores(body: Body, buffers: Mapping[str, Buffer]) -> Iterator[Problem]:
    free = free_axes(body.computed)
    if not body.stores:
        yield Problem("no_store", "", "the loops write nothing")
    for store in body.stores:
        buffer = buffers[store.buffer]
        if store.mode not in MODES:
            yield Problem("store_mode", "", f"{store.mode} is not a way to store")
        if len(store.index) != len(buffer.shape):
            yield Problem("store_rank", "", f"{store.buffer} is stored at another rank")
            continue
        if store.value.dtype != buffer.dtype:
            text = f"{store.buffer} is {buffer.dtype}; a {store.value.dtype} is stored"
            yield Problem("store_dtype", "", text)
        yield from _places(body, store.index, buffer, masked=False)
        yield from _hazards(body, store)
        if store.mode != "set" or _does_nothing(body):
            continue
        placed = {symbol for expr in store.index for symbol in expr.symbols()}
        for axis in body.axes:
            if axis not in placed and _is_long(axis):
                text = f"{store.buffer} does not depend on the loop {axis}: it is stored repeatedly"
                yield Problem("stored_repeatedly", "", text)
        for axis in free[store.value] & set(body.reduce_axes):
            if axis not in placed and _is_long(axis):
                text = f"what is stored in {store.buffer} depends on {axis}, its place does not"
                yield Problem("reduced_axis_escapes", "", text)


def _is_long(axis: Symbol) -> bool:
    size = axis.size.constant if axis.size is not None else None
    return size is None or size > 1


def _hazards(body: Body, store: Store) -> Iterator[Problem]:
    """Check that nothing reads elements of a buffer that other points of the loops overwrite."""
    if store.mode != "set":
        return
    for load in body.loads():
        if load.buffer == store.buffer and load.index != store.index:
            text = f"{load.buffer} is read at other places than it is overwritten at"
            yield Problem("load_after_overwrite", "", text)


def _nodes(body: Body, buffers: Mapping[str, Buffer]) -> Iterator[Problem]:
    for companion in body.companions:
        if not isinstance(companion, Reduce):
            yield Problem("companion", "", f"{type(companion).__name__} is not a reduction")
    for node in body.nodes():
        if isinstance(node, Load):
            yield from _load(body, node, buffers)
        elif isinstance(node, Op):
            yield from _operation(node)
        elif isinstance(node, Reduce):
            yield from _reduction(body, node)
        elif isinstance(node, Scan):
            yield from _scan(body, node)
        elif isinstance(node, Cast):
            if node.bitcast and node.dtype.itemsize != node.args[0].dtype.itemsize:
                yield Problem("bitcast_width", "", f"{node.args[0].dtype} as {node.dtype}")
        elif isinstance(node, Const):
            yield from _constant(node)
        for expr in node.exprs():
            yield from _symbols(body, expr)


def _load(body: Body, node: Load, buffers: Mapping[str, Buffer]) -> Iterator[Problem]:
    buffer = buffers.get(node.buffer)
    if buffer is None:
        yield Problem("unknown_buffer", "", f"{node.buffer} does not exist")
        return
    if len(node.index) != len(buffer.shape):
        yield Problem("load_rank", "", f"{node.buffer} is read at another rank")
        return
    if node.dtype != buffer.dtype:
        yield Problem("load_dtype", "", f"{node.buffer} is {buffer.dtype}, not {node.dtype}")
    if node.mask is not None and node.mask.dtype != torch.bool:
        yield Problem("mask_dtype", "", f"a mask is {node.mask.dtype}")
    yield from _places(body, node.index, buffer, masked=node.mask is not None)


def _places(
    body: Body, index: tuple[Expr, ...], buffer: Buffer, *, masked: bool
) -> Iterator[Problem]:
    """Check places in a buffer: no foreign axes, and nothing that is surely out of bounds."""
    for expr, size in zip(index, buffer.shape, strict=True):
        yield from _symbols(body, expr)
        if masked or _does_nothing(body):
            continue
        attained = _range(expr)
        if attained is None:
            continue  # the bounds of quotients and of products of axes are not attained
        low, high = attained
        if low < 0:
            yield Problem("out_of_bounds", "", f"{buffer.name} at {expr}: as low as {low}")
        most = upper_bound(size) if size.constant is None else size.constant
        if most is not None and high >= most and size.constant != 1:
            yield Problem("out_of_bounds", "", f"{buffer.name} at {expr} of {size}: up to {high}")


def _range(expr: Expr) -> tuple[int, int] | None:
    """Return the least and the largest value of a sum of axes of known sizes, each alone.

    Returns:
        None for what is not such a sum.
    """
    low = high = 0
    for monomial, factor in expr.terms.items():
        span = _span(monomial)
        if span is None:
            return None
        first, last = span
        low += factor * (first if factor > 0 else last)
        high += factor * (last if factor > 0 else first)
    return low, high


def _span(monomial: Monomial) -> tuple[int, int] | None:
    """Return the least and the largest value of 1 or of an axis; None of anything else."""
    if not monomial:
        return 1, 1
    atom = monomial[0]
    if len(monomial) > 1 or not isinstance(atom, Symbol) or atom.kind != "axis":
        return None
    size = atom.size.constant if atom.size is not None else None
    return None if size is None else (0, size - 1)


def _does_nothing(body: Body) -> bool:
    """Whether a loop runs over nothing: then no place is ever looked at."""
    every = (*body.axes, *body.reduce_axes)
    return any(axis.size is not None and axis.size.constant == 0 for axis in every)


def _symbols(body: Body, expr: Expr) -> Iterator[Problem]:
    own = {*body.axes, *body.reduce_axes}
    for symbol in expr.symbols():
        if symbol.kind == "axis" and symbol not in own:
            yield Problem("foreign_axis", "", f"{symbol} is not an axis of these loops")
        elif symbol.kind == "indirect":
            payload = symbol.payload
            if not isinstance(payload, Node) or payload.dtype not in (torch.int64, torch.int32):
                yield Problem("indirect_type", "", f"the place {symbol} is not an integer")


def _operation(node: Op) -> Iterator[Problem]:
    name, kinds = node.name, [arg.dtype for arg in node.args]
    if is_check(node):
        if len(kinds) != 2 or kinds[0] != torch.bool or kinds[1] != node.dtype:
            yield Problem("check_types", "", f"{name} takes a bool and a value")
        return
    scalar = SCALARS.get(name)
    if scalar is None:
        yield Problem("unknown_operation", "", f"there is no operation {name}")
        return
    if len(kinds) != scalar.arity:
        yield Problem("operation_arity", "", f"{name} takes {scalar.arity} values")
        return
    if name != "where" and any(kind in _HALVES for kind in (node.dtype, *kinds)):
        yield Problem("half_arithmetic", "", f"{name} computes in half precision")
    if name == "where":
        if kinds[0] != torch.bool:
            yield Problem("condition_type", "", "a condition is not a bool")
        kinds = kinds[1:]
    elif kinds[0] not in {*scalar.takes, *_HALVES}:
        yield Problem("operation_type", "", f"{name} of {kinds[0]}")
    if len(set(kinds)) > 1:
        yield Problem("mixed_types", "", f"{name} of {', '.join(map(str, kinds))}")
    wanted = scalar.gives or kinds[0]
    if node.dtype != wanted:
        yield Problem("result_type", "", f"{name} of {wanted} gives {node.dtype}")


def _reduction(body: Body, node: Reduce) -> Iterator[Problem]:
    if node.kind not in REDUCTIONS:
        yield Problem("reduction_kind", "", f"there is no reduction {node.kind}")
    if not set(node.axes) <= set(body.reduce_axes):
        yield Problem("reduced_axes", "", f"{node.kind} over axes that the loops do not reduce")
    if isinstance(node, Dot):
        if node.args[0].dtype != node.args[1].dtype:
            yield Problem("mixed_types", "", "a product of two types")
        return
    wanted = torch.int64 if node.kind.startswith("arg") else node.args[0].dtype
    if node.kind in ("any", "all"):
        wanted = torch.bool
    if node.dtype != wanted:
        yield Problem("result_type", "", f"{node.kind} of {node.args[0].dtype} gives {node.dtype}")


def _scan(body: Body, node: Scan) -> Iterator[Problem]:
    if node.kind not in SCANS:
        yield Problem("reduction_kind", "", f"there is no scan {node.kind}")
    if node.axis not in body.reduce_axes:
        yield Problem("reduced_axes", "", f"a scan along {node.axis}, which is not run in order")


def _constant(node: Const) -> Iterator[Problem]:
    if node.dtype.is_floating_point or node.dtype.is_complex or node.dtype == torch.bool:
        return
    info = torch.iinfo(node.dtype)
    if not info.min <= node.value <= info.max:
        yield Problem("constant_range", "", f"{node.value} is no {node.dtype}")


__all__ = ["MODES", "REDUCTIONS", "SCANS", "Problem", "body_problems"]
