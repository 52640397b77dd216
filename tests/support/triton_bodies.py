"""Bodies that the Triton tests and the GPU benchmark share, written as lowering writes them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from fusec.ir import ops
from fusec.ir.body import Body, Buffer, Store, new_axes
from fusec.ir.index import Expr, IntLike, Symbol
from fusec.ir.interpret import run_body
from fusec.ir.node import Node, const, dot, recording, source_line
from fusec.ir.shapes import contiguous_strides
from fusec.report import SourceLine

F32 = torch.float32


@dataclass
class Case:
    """A body with its buffers and how to fill them."""

    name: str
    body: Body
    buffers: dict[str, Buffer]
    label: str = ""
    sizes: dict[Symbol, int] = field(default_factory=dict)
    fill: dict[str, Callable[[torch.Tensor], torch.Tensor]] = field(default_factory=dict)

    def size(self, expr: Expr) -> int:
        value = expr.evaluate(lambda s: self.sizes[s])
        assert isinstance(value, int)
        return value

    def empty(self, name: str, device: str = "cpu") -> torch.Tensor:
        buffer = self.buffers[name]
        return torch.empty_strided(
            [self.size(e) for e in buffer.shape],
            [self.size(e) for e in buffer.strides],
            dtype=buffer.dtype,
            device=device,
        )

    def inputs(self, seed: int = 0, device: str = "cpu") -> dict[str, torch.Tensor]:
        """Return random tensors for what the body reads, poison for what it only writes."""
        generator = torch.Generator().manual_seed(seed)
        found = {}
        for name in dict.fromkeys(self.body.reads() + self.body.writes()):
            tensor = self.empty(name)
            if name in self.body.reads() or self.added(name):
                values = random_values(tensor.shape, tensor.dtype, generator)
                values = self.fill.get(name, lambda t: t)(values)
                unique(tensor).copy_(values[tuple(firsts(tensor))])
            else:
                tensor.fill_(float("nan") if tensor.dtype.is_floating_point else 77)
            found[name] = tensor.to(device)
        return found

    def added(self, name: str) -> bool:
        return name in self.body.updated()

    def expected(
        self, tensors: dict[str, torch.Tensor], precision: torch.dtype | None = None
    ) -> dict[str, torch.Tensor]:
        """Return what the reference interpreter writes, inputs untouched."""
        given = {}
        for name, tensor in tensors.items():
            raise_it = precision is not None and tensor.is_floating_point()
            given[name] = tensor.to(precision) if raise_it else tensor.clone()
        run_body(self.body, given, self.sizes, precision)
        return {name: given[name] for name in self.body.writes()}


def firsts(tensor: torch.Tensor) -> list[slice]:
    """Return the slices that take the first of every dimension that repeats its elements."""
    return [slice(0, 1) if step == 0 else slice(None) for step in tensor.stride()]


def unique(tensor: torch.Tensor) -> torch.Tensor:
    """Return the part of an expanded tensor in which each element of memory occurs once."""
    return tensor[tuple(firsts(tensor))]


def random_values(
    shape: torch.Size, dtype: torch.dtype, generator: torch.Generator
) -> torch.Tensor:
    if dtype == torch.bool:
        return torch.rand(shape, generator=generator) < 0.5
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
    low = 0 if not dtype.is_signed else -50
    return torch.randint(low, 50, shape, generator=generator).to(dtype)


def buffer(
    name: str,
    shape: tuple[IntLike, ...],
    dtype: torch.dtype = F32,
    strides: tuple[IntLike, ...] | None = None,
    device: str = "cpu",
) -> Buffer:
    sizes = tuple(Expr.of(s) for s in shape)
    steps = contiguous_strides(sizes) if strides is None else tuple(Expr.of(s) for s in strides)
    return Buffer(name, sizes, steps, dtype, torch.device(device), hint=name)


def axes(*sizes: IntLike, prefix: str = "i") -> tuple[Symbol, ...]:
    return new_axes(tuple(Expr.of(s) for s in sizes), prefix)


def at(*symbols: Symbol) -> tuple[Expr, ...]:
    return tuple(Expr.of(s) for s in symbols)


def line(number: int, text: str) -> SourceLine:
    return SourceLine("<fuse cell 1>", number, text)


def read(name: str, index: tuple[Expr, ...], dtype: torch.dtype) -> Node:
    """Load and bring to the type that maths is done in."""
    return ops.cast(ops.load(name, index, dtype), ops.compute_dtype(dtype))


def to_memory(value: Node, dtype: torch.dtype) -> Node:
    return ops.cast(value, dtype, implicit=True)


def f32(value: float) -> Node:
    return const(value, F32)


def product(
    rows: IntLike,
    columns: IntLike,
    inner: IntLike,
    dtype: torch.dtype = torch.float16,
    *,
    turned: bool = False,
    quantized: bool = False,
    batch: int = 0,
    device: str = "cpu",
) -> Case:
    """``gelu(x @ w + b)``; w may lie transposed (turned), or be int8 with a scale (quantized)."""
    more = (batch,) if batch else ()
    shape = (columns, inner) if turned else (inner, columns)
    weight = torch.int8 if quantized else dtype
    buffers = {
        "x": buffer("x", (*more, rows, inner), dtype, device=device),
        "w": buffer("w", (*more, *shape), weight, device=device),
        "scale": buffer("scale", (columns,), dtype, device=device),
        "b": buffer("b", (columns,), dtype, device=device),
        "out": buffer("out", (*more, rows, columns), dtype, device=device),
    }
    with recording():
        outer, (k,) = axes(*more, rows, columns), axes(inner, prefix="k")
        *first, i, j = outer
        with source_line(line(2, "h = x @ w + b")):
            right = ops.load("w", at(*first, *((j, k) if turned else (k, j))), weight)
            if quantized:
                scale = read("scale", at(j), dtype)
                right = to_memory(ops.binary("mul", ops.cast(right, F32), scale), dtype)
            left = ops.load("x", at(*first, i, k), dtype)
            h = ops.binary("add", dot(left, right, (k,), F32), read("b", at(j), dtype))
        with source_line(line(3, "y = gelu(h)")):
            y = to_memory(gelu(h), dtype)
        body = Body(outer, (k,), (Store("out", at(*outer), y),))
    if not quantized:
        del buffers["scale"]
    case = Case("mlp", body, buffers, "addmm + gelu")
    case.fill = {"w": lambda t: t if quantized else t * 0.1}
    case.fill["scale"] = lambda t: t * 0.01
    return case


def softmax_of_product(
    rows: int, columns: int, inner: int, dtype: torch.dtype = torch.float16
) -> Case:
    """``(x @ w).softmax(-1)`` in one kernel, whose tiles hold whole rows."""
    buffers = {
        "x": buffer("x", (rows, inner), dtype),
        "w": buffer("w", (inner, columns), dtype),
        "out": buffer("out", (rows, columns), dtype),
    }
    with recording():
        (i, j), (k,) = axes(rows, columns), axes(inner, prefix="k")
        with source_line(line(2, "scores = x @ w")):
            left, right = ops.load("x", at(i, k), dtype), ops.load("w", at(k, j), dtype)
            scores = dot(left, right, (k,), F32)
        with source_line(line(3, "y = scores.softmax(-1)")):
            shifted = ops.binary("sub", scores, ops.reduce("max", scores, (j,), F32))
            share = ops.unary("exp", shifted)
            total = ops.reduce("sum", share, (j,), F32)
            y = to_memory(ops.binary("truediv", share, total), dtype)
        body = Body((i,), (j, k), (Store("out", at(i, j), y),))
    case = Case("scores", body, buffers, "mm + softmax")
    case.fill = {"w": lambda t: t * 0.1}
    return case


def softmax(
    rows: IntLike, columns: IntLike, dtype: torch.dtype = torch.float16, down: bool = False
) -> Case:
    shape = (columns, rows) if down else (rows, columns)
    buffers = {n: buffer(n, shape, dtype) for n in ("x", "out")}
    with recording():
        (i,), (r,) = axes(rows), axes(columns, prefix="r")
        place = at(r, i) if down else at(i, r)
        with source_line(line(4, f"y = torch.softmax(x, {0 if down else -1})")):
            x = read("x", place, dtype)
            shifted = ops.binary("sub", x, ops.reduce("max", x, (r,), x.dtype))
            weight = ops.unary("exp", shifted)
            total = ops.reduce("sum", weight, (r,), x.dtype)
            y = to_memory(ops.binary("truediv", weight, total), dtype)
        body = Body((i,), (r,), (Store("out", place, y),))
    return Case("softmax", body, buffers, "softmax")


def logsumexp(
    rows: IntLike, columns: IntLike, dtype: torch.dtype = torch.float16, masked: bool = True
) -> Case:
    buffers = {
        "x": buffer("x", (rows, columns), dtype),
        "keep": buffer("keep", (rows, columns), torch.bool),
        "out": buffer("out", (rows,), dtype),
    }
    with recording():
        (i,), (r,) = axes(rows), axes(columns, prefix="r")
        x = read("x", at(i, r), dtype)
        if masked:
            with source_line(line(2, 'scores = x.masked_fill(~keep, -float("inf"))')):
                keep = ops.load("keep", at(i, r), torch.bool)
                x = ops.where(keep, x, const(float("-inf"), x.dtype))
        with source_line(line(3, "y = scores.logsumexp(-1)")):
            largest = ops.reduce("max", x, (r,), x.dtype)
            infinite = ops.unary("isinf", largest)
            shift = ops.where(infinite, const(0.0, x.dtype), largest)
            weight = ops.unary("exp", ops.binary("sub", x, shift))
            total = ops.reduce("sum", weight, (r,), x.dtype)
            y = ops.binary("add", ops.unary("log", total), shift)
        body = Body((i,), (r,), (Store("out", at(i), to_memory(y, dtype)),))
    if not masked:
        del buffers["keep"]
    return Case("logsumexp", body, buffers, "masked_fill, logsumexp")


def gelu(x: Node) -> Node:
    half = ops.binary("mul", x, const(0.5, x.dtype))
    scaled = ops.binary("mul", x, const(0.7071067811865476, x.dtype))
    return ops.binary("mul", half, ops.binary("add", ops.unary("erf", scaled), const(1.0, x.dtype)))


def gelu_layer_norm(rows: IntLike, columns: int, dtype: torch.dtype = torch.float16) -> Case:
    buffers = {
        "x": buffer("x", (rows, columns), dtype),
        "w": buffer("w", (columns,), dtype),
        "b": buffer("b", (columns,), dtype),
        "gamma": buffer("gamma", (columns,), dtype),
        "beta": buffer("beta", (columns,), dtype),
        "out": buffer("out", (rows, columns), dtype),
    }
    with recording():
        (i,), (r,) = axes(rows), axes(columns, prefix="r")
        with source_line(line(2, "h = gelu(x * w + b)")):
            x = read("x", at(i, r), dtype)
            scaled = ops.binary("mul", x, read("w", at(r), dtype))
            h = gelu(ops.binary("add", scaled, read("b", at(r), dtype)))
        with source_line(line(3, "y = layer_norm(h, (n,), gamma, beta)")):
            count = const(float(columns), h.dtype)
            mean = ops.binary("truediv", ops.reduce("sum", h, (r,), h.dtype), count)
            centered = ops.binary("sub", h, mean)
            squares = ops.reduce("sum", ops.binary("mul", centered, centered), (r,), h.dtype)
            variance = ops.binary("truediv", squares, count)
            scale = ops.unary("rsqrt", ops.binary("add", variance, const(1e-5, h.dtype)))
            normal = ops.binary("mul", centered, scale)
            y = ops.binary("mul", normal, read("gamma", at(r), dtype))
            y = ops.binary("add", y, read("beta", at(r), dtype))
        body = Body((i,), (r,), (Store("out", at(i, r), to_memory(y, dtype)),))
    return Case("gelu_layer_norm", body, buffers, "gelu, layer_norm")


def spread_rows(rows: IntLike, columns: int, dtype: torch.dtype = torch.float16) -> Case:
    """The squared distances from each row's mean, without the mean; what lies below the largest."""
    buffers = {
        "x": buffer("x", (rows, columns), dtype),
        "out": buffer("out", (rows,), F32),
        "total": buffer("total", (rows,), F32),
    }
    with recording():
        (i,), (r,) = axes(rows), axes(columns, prefix="r")
        with source_line(line(1, "out = x.var(-1, correction=0) * n")):
            x = ops.cast(ops.load("x", at(i, r), dtype), F32)
            mean = ops.binary("truediv", ops.reduce("sum", x, (r,), F32), f32(float(columns)))
            centered = ops.binary("sub", x, mean)
            squares = ops.reduce("sum", ops.binary("mul", centered, centered), (r,), F32)
        with source_line(line(2, "total = (x - x.amax(-1, True)).exp().sum(-1)")):
            below = ops.binary("sub", x, ops.reduce("max", x, (r,), F32))
            total = ops.reduce("sum", ops.unary("exp", below), (r,), F32)
        stores = (Store("out", at(i), squares), Store("total", at(i), total))
        body = Body((i,), (r,), stores)
    return Case("spread_rows", body, buffers, "var, exp, sum")


def normalize(
    shape: tuple[int, ...],
    reduced: tuple[int, ...],
    channel: tuple[int, ...],
    dtype: torch.dtype = torch.float16,
) -> Case:
    """A norm over the dimensions ``reduced``, with a weight along those of ``channel``."""
    buffers = {
        "x": buffer("x", shape, dtype),
        "w": buffer("w", tuple(shape[d] for d in channel), F32),
        "out": buffer("out", shape, dtype),
    }
    with recording():
        every = axes(*shape)
        inner = tuple(every[d] for d in reduced)
        outer = tuple(a for a in every if a not in inner)
        with source_line(line(1, "y = norm(x) * w")):
            x = read("x", at(*every), dtype)
            count = const(float(math.prod(shape[d] for d in reduced)), x.dtype)
            mean = ops.binary("truediv", ops.reduce("sum", x, inner, x.dtype), count)
            centered = ops.binary("sub", x, mean)
            squares = ops.reduce("sum", ops.binary("mul", centered, centered), inner, x.dtype)
            variance = ops.binary("truediv", squares, count)
            scale = ops.unary("rsqrt", ops.binary("add", variance, const(1e-5, x.dtype)))
            w = ops.cast(ops.load("w", at(*(every[d] for d in channel)), F32), x.dtype)
            y = ops.binary("mul", ops.binary("mul", centered, scale), w)
        body = Body(outer, inner, (Store("out", at(*every), to_memory(y, dtype)),))
    return Case("normalize", body, buffers, "norm")


def norm_gradient(
    rows: IntLike, columns: int, piece: int, dtype: torch.dtype = torch.float16
) -> Case:
    """The gradients of a norm: of its input along the rows, of weight and bias down the columns."""
    pieces = (Expr.of(rows) + piece - 1) // piece
    wide = torch.float64 if dtype == torch.float64 else F32
    buffers = {name: buffer(name, (rows, columns), dtype) for name in ("dy", "x", "dx")}
    buffers |= {"w": buffer("w", (columns,), dtype), "scale": buffer("scale", (rows, 1), F32)}
    buffers |= {name: buffer(name, (pieces, columns), wide) for name in ("dw_parts", "db_parts")}
    with recording():
        (i,), (r,) = axes(rows), axes(columns, prefix="r")
        row = Expr.of(i)
        with source_line(line(1, "n = x * scale")):
            x, dy = (read(name, at(i, r), dtype) for name in ("x", "dy"))
            scale = ops.cast(ops.load("scale", (row, Expr.of(0)), F32), x.dtype)
            n = ops.binary("mul", x, scale)
        with source_line(line(2, "dn = dy * w")):
            dn = ops.binary("mul", dy, read("w", at(r), dtype))
        with source_line(line(3, "dx = (dn - n * (dn * n).mean(-1)) * scale")):
            total = ops.reduce("sum", ops.binary("mul", dn, n), (r,), x.dtype)
            mean = ops.binary("truediv", total, const(float(columns), x.dtype))
            inner = ops.binary("sub", dn, ops.binary("mul", n, mean))
            dx = to_memory(ops.binary("mul", inner, scale), dtype)
        with source_line(line(4, "dw, db = (dy * n).sum(0), dy.sum(0)")):
            place = (row // piece, Expr.of(r))
            stores = (
                Store("dx", at(i, r), dx),
                Store("dw_parts", place, ops.binary("mul", dy, n), "sum"),
                Store("db_parts", place, dy, "sum"),
            )
    case = Case("norm_gradient", Body((i,), (r,), stores), buffers, "norm backward")
    case.fill["scale"] = lambda values: values.sigmoid() + 0.5  # as those of a norm's rows are
    return case


def group_norm(
    batch: int, groups: int, each: int, place: int, dtype: torch.dtype = torch.float16
) -> Case:
    """Rows of several channels, each with a weight of its own."""
    return normalize((batch, groups, each, place), (2, 3), (1, 2), dtype)


def batch_norm(batch: int, channels: int, place: int, dtype: torch.dtype = torch.float16) -> Case:
    """Rows of which every image has a part."""
    return normalize((batch, channels, place), (0, 2), (1,), dtype)


def batch_norm_last(rows: int, channels: int, dtype: torch.dtype = torch.float16) -> Case:
    """Columns side by side: the channels lie last."""
    return normalize((rows, channels), (0,), (1,), dtype)


def running_mean(rows: int, columns: int, down: bool = False, about: str = "total") -> Case:
    """A mean of each row (or column) that goes into one of all calls, beside what is left of it.

    Args:
        rows: Of the input.
        columns: Of the input.
        down: Whether the columns are what has a mean.
        about: What is left is beside the new ``total`` or the ``old`` mean.
    """
    shape = (columns, rows) if down else (rows, columns)
    buffers = {
        "x": buffer("x", shape, F32),
        "mean": buffer("mean", (rows,), F32),
        "out": buffer("out", shape, F32),
    }
    with recording():
        (i,), (r,) = axes(rows), axes(columns, prefix="r")
        place = at(r, i) if down else at(i, r)
        x = ops.load("x", place, F32)
        total = ops.reduce("sum", x, (r,), F32)
        new = ops.binary("mul", total, ops.const(0.1 / columns, F32))
        before = ops.load("mean", at(i), F32)
        old = ops.binary("mul", before, ops.const(0.9, F32))
        middle = ops.binary("mul", total, ops.const(1 / columns, F32))
        centred = ops.binary("sub", x, middle if about == "total" else before)
        stores = (
            Store("out", place, centred),
            Store("mean", at(i), ops.binary("add", old, new)),
        )
        body = Body((i,), (r,), stores)
    return Case("running_mean", body, buffers, "running mean")


def cross_entropy(rows: IntLike, columns: int, dtype: torch.dtype = torch.float16) -> Case:
    """Loss of each row: log of the sum of exponentials, less the target's score."""
    buffers = {
        "logits": buffer("logits", (rows, columns), dtype),
        "target": buffer("target", (rows,), torch.int64),
        "loss": buffer("loss", (rows,), F32),
    }
    with recording():
        (i,), (r,) = axes(rows), axes(columns, prefix="r")
        with source_line(line(5, 'loss = cross_entropy(logits, target, reduction="none")')):
            x = read("logits", at(i, r), dtype)
            largest = ops.reduce("max", x, (r,), x.dtype)
            weight = ops.unary("exp", ops.binary("sub", x, largest))
            total = ops.unary("log", ops.reduce("sum", weight, (r,), x.dtype))
            where_to = ops.load("target", at(i), torch.int64)
            column = ops.checked_index(where_to, Expr.of(columns), what="target")
            score = read("logits", (Expr.of(i), column), dtype)
            loss = ops.binary("sub", total, ops.binary("sub", score, largest))
        body = Body((i,), (r,), (Store("loss", at(i), ops.cast(loss, F32)),))
    return Case(
        "cross_entropy",
        body,
        buffers,
        "cross_entropy",
        fill={"target": lambda t: t.abs() % columns},
    )


def pointwise_chain(*shape: IntLike, dtype: torch.dtype = torch.float16) -> Case:
    buffers = {n: buffer(n, shape, dtype) for n in ("a", "b", "out")}
    with recording():
        index = axes(*shape)
        with source_line(line(2, "h = torch.relu(a + b)")):
            a, b = (read(n, at(*index), dtype) for n in ("a", "b"))
            h = ops.binary("maximum", ops.binary("add", a, b), const(0.0, a.dtype))
        with source_line(line(3, "y = torch.tanh(h) * h + 2")):
            scaled = ops.binary("mul", ops.unary("tanh", h), h)
            y = ops.binary("add", scaled, const(2.0, h.dtype))
        body = Body(index, (), (Store("out", at(*index), to_memory(y, dtype)),))
    return Case("pointwise_chain", body, buffers, "relu, tanh")


def wave(*shape: IntLike, dtype: torch.dtype = F32) -> Case:
    """Two angles, one computed; its cosine is added to the sine of the other."""
    buffers = {n: buffer(n, shape, dtype) for n in ("x", "out")}
    with recording():
        index = axes(*shape)
        with source_line(line(1, "y = torch.sin(x) + torch.cos(x * 3)")):
            x = read("x", at(*index), dtype)
            tripled = ops.binary("mul", x, const(3.0, x.dtype))
            y = ops.binary("add", ops.unary("sin", x), ops.unary("cos", tripled))
        body = Body(index, (), (Store("out", at(*index), to_memory(y, dtype)),))
    return Case("wave", body, buffers, "sin, cos")


def row_windows(rows: int, windows: int, dtype: torch.dtype = F32) -> Case:
    """The largest of three elements, every second window of a row with an edge at its start."""
    buffers = {
        "x": buffer("x", (rows + 1, 2 * windows), dtype),
        "out": buffer("out", (rows, windows), dtype),
    }
    with recording():
        i, j = axes(rows, windows)
        with source_line(line(1, "y = max_pool1d(x[1:], 3, 2, 1)")):
            place = ops.index_value(Expr.of(j), torch.int64)
            inside = ops.binary("ge", place, ops.const(1, torch.int64))
            row = Expr.of(i) + 1
            before, here, after = (read("x", (row, Expr.of(j) * 2 + n), dtype) for n in (-1, 0, 1))
            lowest = const(-math.inf, before.dtype)
            before = ops.where(inside, ops.guard_loads(before, inside), lowest)
            y = ops.binary("maximum", after, ops.binary("maximum", here, before))
        body = Body((i, j), (), (Store("out", at(i, j), to_memory(y, dtype)),))
    return Case("row_windows", body, buffers, "max pool")


def broadcast_add(rows: IntLike, columns: IntLike, dtype: torch.dtype = F32) -> Case:
    buffers = {
        "x": buffer("x", (rows, columns), dtype),
        "bias": buffer("bias", (columns,), dtype),
        "scale": buffer("scale", (rows, 1), dtype),
        "gain": buffer("gain", (), dtype),
        "out": buffer("out", (rows, columns), dtype),
    }
    with recording():
        i, j = axes(rows, columns)
        with source_line(line(1, "y = (x + bias) * scale * gain")):
            y = ops.binary("add", read("x", at(i, j), dtype), read("bias", at(j), dtype))
            y = ops.binary("mul", y, read("scale", (Expr.of(i), Expr.of(0)), dtype))
            y = ops.binary("mul", y, read("gain", (), dtype))
        body = Body((i, j), (), (Store("out", at(i, j), to_memory(y, dtype)),))
    return Case("broadcast_add", body, buffers, "add, mul")


def transpose_add(rows: IntLike, columns: IntLike, dtype: torch.dtype = torch.float16) -> Case:
    buffers = {
        "a": buffer("a", (rows, columns), dtype),
        "b": buffer("b", (columns, rows), dtype),
        "out": buffer("out", (rows, columns), dtype),
    }
    with recording():
        i, j = axes(rows, columns)
        with source_line(line(1, "y = a + b.T")):
            y = ops.binary("add", read("a", at(i, j), dtype), read("b", at(j, i), dtype))
        body = Body((i, j), (), (Store("out", at(i, j), to_memory(y, dtype)),))
    return Case("transpose_add", body, buffers, "add")


def sum_columns(rows: IntLike, columns: IntLike, dtype: torch.dtype = torch.float16) -> Case:
    buffers = {"x": buffer("x", (rows, columns), dtype), "out": buffer("out", (columns,), dtype)}
    with recording():
        (j,), (r,) = axes(columns), axes(rows, prefix="r")
        with source_line(line(1, "total = x.sum(0)")):
            x = read("x", at(r, j), dtype)
            total = ops.reduce("sum", x, (r,), x.dtype)
        body = Body((j,), (r,), (Store("out", at(j), to_memory(total, dtype)),))
    return Case("sum_columns", body, buffers, "sum")


def sum_all(*shape: IntLike, dtype: torch.dtype = torch.float16) -> Case:
    buffers = {"x": buffer("x", shape, dtype), "out": buffer("out", (), dtype)}
    with recording():
        r = axes(*shape, prefix="r")
        with source_line(line(1, "total = x.sum()")):
            x = read("x", at(*r), dtype)
            total = ops.reduce("sum", x, r, x.dtype)
        body = Body((), r, (Store("out", (), to_memory(total, dtype)),))
    return Case("sum_all", body, buffers, "sum")


def reduce_rows(
    kind: str, rows: IntLike, columns: IntLike, dtype: torch.dtype = F32, down: bool = False
) -> Case:
    """One reduction of any kind along rows, or down columns."""
    compute = ops.compute_dtype(dtype)
    if kind in ("any", "all", "xor"):
        compute = torch.bool
    elif kind in ("sum", "prod") and not dtype.is_floating_point:
        compute = torch.int64
    result = torch.int64 if kind.startswith("arg") else compute
    memory = dtype if result == ops.compute_dtype(dtype) else result
    shape = (columns, rows) if down else (rows, columns)
    buffers = {"x": buffer("x", shape, dtype), "out": buffer("out", (rows,), memory)}
    with recording():
        (i,), (r,) = axes(rows), axes(columns, prefix="r")
        with source_line(line(1, f"y = x.{kind}(-1)")):
            x = ops.cast(ops.load("x", at(r, i) if down else at(i, r), dtype), compute)
            y = ops.reduce(kind, x, (r,), result)
        body = Body((i,), (r,), (Store("out", at(i), to_memory(y, memory)),))
    return Case(f"row_{kind}", body, buffers, kind)


def scans(
    kinds: tuple[str, ...],
    rows: IntLike,
    columns: IntLike,
    dtype: torch.dtype = F32,
    *,
    down: bool = False,
) -> Case:
    """Scans of x along its rows, or down its columns, with arithmetic before and after."""
    buffers = {"x": buffer("x", (rows, columns), dtype)}
    stores = []
    with recording():
        i, r = axes(columns if down else rows, prefix="i") + axes(
            rows if down else columns, prefix="r"
        )
        index = at(r, i) if down else at(i, r)
        with source_line(line(2, "y = running(x)")):
            x = read("x", index, dtype)
            if dtype.is_floating_point:
                x = ops.binary("mul", x, const(0.5, x.dtype))
            for kind in kinds:
                placed = kind.startswith("arg")
                y = ops.scan(kind, x, r, torch.int64 if placed else x.dtype)
                if not placed and dtype.is_floating_point:
                    y = ops.binary("add", y, x)
                name = f"{kind}_out"
                buffers[name] = buffer(name, (rows, columns), torch.int64 if placed else dtype)
                stores.append(Store(name, index, to_memory(y, buffers[name].dtype)))
        body = Body((i,), (r,), tuple(stores))
    case = Case("scans", body, buffers, ", ".join(f"running {kind}" for kind in kinds))
    if dtype.is_floating_point:
        case.fill["x"] = powers
    return case


def powers(x: torch.Tensor) -> torch.Tensor:
    """Return powers of two, 1 to 4, of both signs: their sums and products are exact."""
    return torch.where(x < 0, -1, 1).to(x.dtype) * 2 ** x.abs().round().clamp(max=2)


def gather(rows: int, columns: int, picks: int, dtype: torch.dtype = F32) -> Case:
    buffers = {
        "table": buffer("table", (rows, columns), dtype),
        "which": buffer("which", (picks,), torch.int64),
        "out": buffer("out", (picks, columns), dtype),
    }
    with recording():
        i, j = axes(picks, columns)
        with source_line(line(1, "y = table[which] * 2")):
            row = ops.checked_index(ops.load("which", at(i), torch.int64), Expr.of(rows))
            y = ops.binary(
                "mul", read("table", (row, Expr.of(j)), dtype), const(2.0, ops.compute_dtype(dtype))
            )
        body = Body((i, j), (), (Store("out", at(i, j), to_memory(y, dtype)),))
    return Case("gather", body, buffers, "index", fill={"which": lambda t: t % (2 * rows) - rows})


def scatter_add(rows: int, columns: int, count: int) -> Case:
    """The gradient of a table whose rows are picked."""
    buffers = {
        "grad": buffer("grad", (count, columns), F32),
        "which": buffer("which", (count,), torch.int64),
        "table_grad": buffer("table_grad", (rows, columns), F32),
    }
    with recording():
        i, j = axes(count, columns)
        with source_line(line(1, "table_grad[which] += grad")):
            row = ops.checked_index(ops.load("which", at(i), torch.int64), Expr.of(rows))
            value = ops.load("grad", at(i, j), F32)
        body = Body((i, j), (), (Store("table_grad", (row, Expr.of(j)), value, "add"),))
    case = Case("scatter_add", body, buffers, "index_put")
    case.fill = {"which": lambda t: t % (2 * rows) - rows}
    return case


def random_kept(rows: int, columns: int, *, quarters: bool = False) -> Case:
    """Dropout; with ``quarters``, positions share Philox numbers."""
    buffers = {
        "x": buffer("x", (rows, columns), F32),
        "seed": buffer("seed", (), torch.int64),
        "out": buffer("out", (rows, columns), F32),
    }
    with recording():
        i, j = axes(rows, columns)
        with source_line(line(1, "y = F.dropout(x, 0.25)")):
            position = ops.index_value(Expr.of(i) * columns + j, torch.int64)
            stream = ops.const(3, torch.int64)
            seed = ops.load("seed", (), torch.int64)
            if quarters:
                bits = ops.random_word(seed, position, stream)
            else:
                bits = ops.random_bits(seed, position, stream, 0)
            few = ops.binary("bitwise_and", bits, ops.const(0xFFFFFF, torch.int32))
            number = ops.binary("mul", ops.cast(few, F32), const(2.0**-24, F32))
            kept = ops.binary("lt", number, const(0.75, F32))
            scaled = ops.binary("mul", ops.load("x", at(i, j), F32), const(4 / 3, F32))
            y = ops.where(kept, scaled, const(0.0, F32))
        body = Body((i, j), (), (Store("out", at(i, j), y),))
    return Case("random_kept", body, buffers, "dropout")


def test_bodies_are_what_eager_computes() -> None:
    case = softmax(5, 33, F32)
    tensors = case.inputs()
    expected = torch.softmax(tensors["x"].double(), -1)
    torch.testing.assert_close(case.expected(tensors, torch.float64)["out"], expected)
    case = logsumexp(5, 33, F32)
    tensors = case.inputs()
    masked = tensors["x"].double().masked_fill(~tensors["keep"], -float("inf"))
    expected = masked.logsumexp(-1)
    torch.testing.assert_close(case.expected(tensors, torch.float64)["out"], expected)
    case = gelu_layer_norm(5, 33, F32)
    tensors = {n: t.double() for n, t in case.inputs().items()}
    h = torch.nn.functional.gelu(tensors["x"] * tensors["w"] + tensors["b"])
    expected = torch.nn.functional.layer_norm(h, (33,), tensors["gamma"], tensors["beta"])
    torch.testing.assert_close(case.expected(tensors, torch.float64)["out"], expected)
    case = cross_entropy(5, 33, F32)
    tensors = case.inputs()
    expected = torch.nn.functional.cross_entropy(
        tensors["logits"].double(), tensors["target"], reduction="none"
    )
    got = case.expected(tensors, torch.float64)["loss"]
    torch.testing.assert_close(got, expected.to(got.dtype))
