"""Shapes in terms of index expressions: strides and row-major positions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fusec.ir.index import Expr, IntLike, Symbol, floor_div, remainder


def product(sizes: Iterable[IntLike]) -> Expr:
    """Return the product of ``sizes``."""
    total = Expr.of(1)
    for size in sizes:
        total = total * size
    return total


def counted(sizes: Iterable[IntLike], values: Mapping[Symbol, int]) -> int | None:
    """Return the product of ``sizes`` as a number; None where a symbol has no value."""
    total = product(sizes)
    if total.constant is None and not set(total.symbols()) <= values.keys():
        return None
    found = total.evaluate(lambda symbol: values[symbol])
    assert isinstance(found, int)
    return found


def contiguous_strides(shape: Iterable[IntLike]) -> tuple[Expr, ...]:
    """Return the strides of a row-major tensor of ``shape``, as torch computes them.

    A dimension of size 0 counts as 1, as in torch.
    """
    strides: list[Expr] = []
    running = Expr.of(1)
    for size in reversed([Expr.of(s) for s in shape]):
        strides.append(running)
        running = running * (size if size.constant != 0 else 1)
    return tuple(reversed(strides))


def flatten(index: Iterable[IntLike], shape: Iterable[IntLike]) -> Expr:
    """Return the row-major position of ``index`` in ``shape``."""
    position = Expr.of(0)
    for i, size in zip(index, shape, strict=True):
        position = position * size + i
    return position


def unflatten(position: Expr, shape: Iterable[IntLike]) -> tuple[Expr, ...]:
    """Return the index in ``shape`` of a row-major ``position``."""
    sizes = [Expr.of(size) for size in shape]
    if any(size.constant == 0 for size in sizes):
        return tuple(Expr.of(0) for _ in sizes)
    index: list[Expr] = []
    for size in reversed(sizes[1:]):
        index.append(remainder(position, size))
        position = floor_div(position, size)
    if sizes:
        index.append(position)
    return tuple(reversed(index))
