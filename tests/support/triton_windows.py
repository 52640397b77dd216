"""Bodies whose loads step over elements: windows, neighbors in turns, places that are computed."""

from __future__ import annotations

import torch

from fusec.ir import ops
from fusec.ir.body import Body, Store
from fusec.ir.index import Expr, IntLike
from fusec.ir.node import Node, cast, const, index_value, load, recording, source_line
from support.triton_bodies import F32, Case, at, axes, buffer, line, read, to_memory


def neighbors(
    rows: IntLike, columns: int, dtype: torch.dtype = F32, *, masked: bool = False
) -> Case:
    """Return ``x[:, 1::2] - x[:, ::2] * scale``; of masked rows nothing is read."""
    buffers = {
        "x": buffer("x", (rows, 2 * columns), dtype),
        "scale": buffer("scale", (rows,), F32),
        "out": buffer("out", (rows, columns), dtype),
    }
    with recording():
        i, j = axes(rows, columns)
        r, c = Expr.of(i), Expr.of(j)
        scale = ops.load("scale", at(i), F32)
        with source_line(line(1, "y = x[:, 1::2] - x[:, ::2] * scale")):
            inside = ops.binary("gt", scale, const(0.0, F32)) if masked else None
            odd, even = (cast(load("x", (r, 2 * c + k), dtype, inside, 3.0), F32) for k in (1, 0))
            y = ops.binary("sub", odd, ops.binary("mul", even, scale))
        body = Body((i, j), (), (Store("out", at(i, j), to_memory(y, dtype)),))
    return Case("neighbors", body, buffers, "turns")


def windows(images: int, height: int, width: int, dtype: torch.dtype = F32) -> Case:
    """Return the largest of each 3 x 3 window, two apart, with a border of one."""
    buffers = {
        "x": buffer("x", (images, 2 * height, 2 * width), dtype),
        "out": buffer("out", (images, height, width), dtype),
    }
    zero = const(0, torch.int64)
    with recording():
        n, i, j = axes(images, height, width)
        with source_line(line(1, "y = F.max_pool2d(x, 3, 2, 1)")):
            largest: Node | None = None
            for dy in (-1, 0, 1):
                for dx in (-1, 0, 1):
                    y, x = 2 * Expr.of(i) + dy, 2 * Expr.of(j) + dx
                    inside = ops.logical_and(
                        *(
                            ops.binary("ge", index_value(place, torch.int64), zero)
                            for place, step in ((y, dy), (x, dx))
                            if step < 0
                        )
                    )
                    value = load("x", (Expr.of(n), y, x), dtype, inside, float("-inf"))
                    value = cast(value, F32)
                    largest = value if largest is None else ops.binary("maximum", largest, value)
            assert largest is not None
        body = Body((n, i, j), (), (Store("out", at(n, i, j), to_memory(largest, dtype)),))
    return Case("windows", body, buffers, "max_pool2d")


def blended(rows: IntLike, columns: int, dtype: torch.dtype = F32) -> Case:
    """Return rows of twice the length, every element between its two neighbors."""
    buffers = {
        "x": buffer("x", (rows, columns), dtype),
        "shift": buffer("shift", (rows,), F32),
        "weight": buffer("weight", (2 * columns,), F32),
        "out": buffer("out", (rows, 2 * columns), dtype),
    }
    with recording():
        i, j = axes(rows, 2 * columns)
        with source_line(line(1, 'y = F.interpolate(x, scale_factor=2, mode="linear")')):
            position = cast(index_value(Expr.of(j), torch.int64), F32)
            half = const(0.5, F32)
            position = ops.binary("add", position, half)
            position = ops.binary("sub", ops.binary("mul", position, half), half)
            position = ops.binary("maximum", position, const(0.0, F32))
            left = cast(position, torch.int64)
            last = const(columns - 1, torch.int64)
            right = ops.binary("minimum", ops.binary("add", left, const(1, torch.int64)), last)
            share = ops.binary("sub", position, cast(left, F32))
            ends = [
                read("x", (Expr.of(i), ops.checked_index(place, Expr.of(columns))), dtype)
                for place in (left, right)
            ]
            apart = ops.binary("sub", ends[1], ends[0])
            y = ops.binary("add", ends[0], ops.binary("mul", apart, share))
        with source_line(line(2, "y = y * weight + shift")):
            weight, shift = ops.load("weight", at(j), F32), ops.load("shift", at(i), F32)
            y = ops.binary("add", ops.binary("mul", y, weight), ops.unary("exp", shift))
        body = Body((i, j), (), (Store("out", at(i, j), to_memory(y, dtype)),))
    return Case("blended", body, buffers, "interpolate")


def overlapping(rows: int, columns: int, places: tuple[int, ...], width: int = 0) -> Case:
    """Return the sums of ``x[:, 2 * j + place]``, zero before the row's first element."""
    width = width or 2 * columns + max(places)
    buffers = {
        "x": buffer("x", (rows, width), torch.float16),
        "out": buffer("out", (rows, columns), torch.float16),
    }
    with recording():
        i, j = axes(rows, columns)
        total: Node | None = None
        for place in places:
            x = 2 * Expr.of(j) + place
            at_place, zero = index_value(x, torch.int64), const(0, torch.int64)
            inside = ops.binary("ge", at_place, zero) if place < 0 else None
            value = cast(load("x", (Expr.of(i), x), torch.float16, inside, 0.0), F32)
            total = value if total is None else ops.binary("add", total, value)
        assert total is not None
        body = Body((i, j), (), (Store("out", at(i, j), to_memory(total, torch.float16)),))
    return Case("overlapping", body, buffers, "neighbors and one more")


def weighted(images: int, side: int, channels: int, dtype: torch.dtype = torch.float16) -> Case:
    """Return each channel's 3 x 3 windows times its weights, 0 outside, the channels innermost."""
    buffers = {
        "x": buffer("x", (images, side, side, channels), dtype),
        "weight": buffer("weight", (3, 3, channels), dtype),
        "out": buffer("out", (images, side, side, channels), dtype),
    }
    with recording():
        n, i, j, c = axes(images, side, side, channels)
        with source_line(line(1, "y = F.conv2d(x, weight, None, 1, 1, 1, channels)")):
            total: Node | None = None
            for row in range(3):
                for column in range(3):
                    places = (Expr.of(i) + row - 1, Expr.of(j) + column - 1)
                    inside = ops.logical_and(
                        *(
                            ops.binary(
                                test, index_value(place, torch.int64), const(end, torch.int64)
                            )
                            for place, step in zip(places, (row, column), strict=True)
                            for test, end in (("ge", 0), ("lt", side))
                            if (step, test) in ((0, "ge"), (2, "lt"))
                        )
                    )
                    index = (Expr.of(n), *places, Expr.of(c))
                    value = cast(load("x", index, dtype, inside, 0.0), F32)
                    weight = ops.load("weight", (Expr.of(row), Expr.of(column), Expr.of(c)), dtype)
                    term = ops.binary("mul", value, cast(weight, F32))
                    total = term if total is None else ops.binary("add", total, term)
            assert total is not None
        store = Store("out", at(n, i, j, c), to_memory(total, dtype))
        body = Body((n, i, j, c), (), (store,))
    return Case("weighted", body, buffers, "convolution")
