"""Bodies for the tests of the C++ emitter: written by hand, and drawn at random."""

from __future__ import annotations

import ctypes
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from fusec.ir import ops
from fusec.ir.body import Body, Buffer, Store
from fusec.ir.index import Expr, Symbol
from fusec.ir.interpret import CheckFailed, run_body
from fusec.ir.node import Node, recording, source_line
from fusec.ir.shapes import contiguous_strides
from fusec.kernel_source import KernelSource
from fusec.report import SourceLine
from fusec.targets.cpp.emit import emit_cpp
from fusec.toolchain.build import build
from fusec.toolchain.loading import load

F32, F64, BF16, F16 = torch.float32, torch.float64, torch.bfloat16, torch.float16
I8, U8, I16, I32, I64 = torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64
BOOL = torch.bool
DTYPES = (F32, F64, BF16, F16, I8, U8, I16, I32, I64, BOOL)

Size = int | Expr


@dataclass
class Bench:
    """A body being written, with its buffers and the values of its symbolic sizes."""

    name: str = "kernel"
    buffers: dict[str, Buffer] = field(default_factory=dict)
    outer: list[Symbol] = field(default_factory=list)
    reduced: list[Symbol] = field(default_factory=list)
    stores: list[Store] = field(default_factory=list)
    sizes: dict[Symbol, int] = field(default_factory=dict)
    exact: dict[str, bool] = field(default_factory=dict)

    def size(self, name: str, value: int) -> Expr:
        """Make a symbolic size whose value in this test is ``value``."""
        symbol = Symbol(name, "size", low=min(value, 2))
        self.sizes[symbol] = value
        return Expr.of(symbol)

    def axis(self, size: Size) -> Expr:
        """Add an outer axis."""
        self.outer.append(Symbol(f"i{len(self.outer)}", "axis", Expr.of(size)))
        return Expr.of(self.outer[-1])

    def reduce_axis(self, size: Size) -> Expr:
        """Add a reduced axis."""
        self.reduced.append(Symbol(f"r{len(self.reduced)}", "axis", Expr.of(size)))
        return Expr.of(self.reduced[-1])

    def buffer(
        self,
        name: str,
        shape: Sequence[Size],
        dtype: torch.dtype = F32,
        strides: Sequence[Size] | None = None,
    ) -> str:
        """Declare a buffer; contiguous unless strides are given."""
        sizes = tuple(Expr.of(s) for s in shape)
        steps = contiguous_strides(sizes) if strides is None else tuple(Expr.of(s) for s in strides)
        self.buffers[name] = Buffer(name, sizes, steps, dtype, hint=name)
        return name

    def load(
        self, name: str, *index: Expr | int, mask: Node | None = None, other: float = 0
    ) -> Node:
        """Load an element, half types as float32."""
        dtype = self.buffers[name].dtype
        exprs = tuple(Expr.of(e) for e in index)
        return ops.cast(ops.load(name, exprs, dtype, mask, other), ops.compute_dtype(dtype))

    def store(self, name: str, index: Sequence[Expr | int], value: Node, mode: str = "set") -> None:
        """Store a value, cast to the buffer's type."""
        cast = ops.cast(value, self.buffers[name].dtype)
        self.stores.append(Store(name, tuple(Expr.of(e) for e in index), cast, mode))

    def reduce(self, kind: str, value: Node) -> Node:
        """Reduce over all reduced axes."""
        dtype = I64 if kind.startswith("arg") else value.dtype
        return ops.reduce(kind, value, tuple(self.reduced), dtype)

    @property
    def body(self) -> Body:
        """The body so far."""
        return Body(tuple(self.outer), tuple(self.reduced), tuple(self.stores))

    def source(self) -> KernelSource:
        """Emit it."""
        return emit_cpp(self.name, self.body, self.buffers)

    def value(self, expr: Expr) -> int:
        result = expr.evaluate(lambda s: self.sizes[s])
        assert isinstance(result, int)
        return result

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self.value(s) for s in self.buffers[name].shape)

    def strides(self, name: str) -> tuple[int, ...]:
        return tuple(self.value(s) for s in self.buffers[name].strides)


def line(number: int, text: str) -> source_line:  # type: ignore[valid-type]
    """Mark what is recorded as line ``number`` of a cell."""
    return source_line(SourceLine("<fuse cell 1>", number, text))


class Built:
    """A built kernel of a bench."""

    def __init__(self, bench: Bench, source: KernelSource | None = None) -> None:
        self.bench = bench
        self.source = source or bench.source()
        path = build(self.source.text)
        count = len(self.source.signature.sizes) + 1
        arguments = self.source.signature.arguments
        types = [ctypes.c_void_p] * len(arguments) + [ctypes.c_int64] * count
        self.function = load(path, self.source.entry, argtypes=types)
        body = bench.body
        from fusec.codegen.common.signatures import argument_buffers, body_sizes

        self.order = argument_buffers(body)
        self.sizes = [bench.sizes[s] for s in body_sizes(body, bench.buffers)]

    def __call__(self, tensors: Mapping[str, torch.Tensor], threads: int = 1) -> int:
        pointers = [tensors[name].data_ptr() for name in self.order]
        return int(self.function(*pointers, *self.sizes, threads))


def strided(bench: Bench, name: str, values: torch.Tensor) -> torch.Tensor:
    """Return ``values`` in the buffer's own layout."""
    result = torch.empty_strided(bench.shape(name), bench.strides(name), dtype=values.dtype)
    return result.copy_(values)


def random_values(
    generator: torch.Generator, shape: Sequence[int], dtype: torch.dtype, special: bool = False
) -> torch.Tensor:
    """Return values of moderate size; with NaN, infinities and zeros of both signs if special."""
    if dtype == BOOL:
        return torch.randint(0, 2, tuple(shape), generator=generator).to(BOOL)
    if not dtype.is_floating_point:
        low = 0 if dtype == U8 else -9
        return torch.randint(low, 10, tuple(shape), generator=generator).to(dtype)
    values = torch.randn(tuple(shape), generator=generator, dtype=F64).mul(2).to(dtype)
    if special and values.numel():
        flat = values.view(-1)
        odd = torch.tensor([math.nan, math.inf, -math.inf, 0.0, -0.0], dtype=dtype)
        count = max(1, flat.numel() // 10)
        where = torch.randint(0, flat.numel(), (count,), generator=generator)
        flat[where] = odd[torch.randint(0, 5, (count,), generator=generator)]
    return values


def poisoned(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor that shows what was not written."""
    if dtype.is_floating_point:
        return torch.full(tuple(shape), 77.0, dtype=dtype)
    return torch.full(tuple(shape), 1 if dtype == BOOL else 77, dtype=dtype)


def make_inputs(
    bench: Bench, seed: int = 0, special: bool = False, **given: torch.Tensor
) -> dict[str, torch.Tensor]:
    """Return a tensor for every buffer: random inputs, poisoned outputs."""
    generator = torch.Generator().manual_seed(seed)
    reads = set(bench.body.reads())
    tensors = {}
    for name, buffer in bench.buffers.items():
        shape = bench.shape(name)
        if name in given:
            values = given[name]
        elif name in reads:
            values = random_values(generator, shape, buffer.dtype, special)
        else:
            values = poisoned(shape, buffer.dtype)
        tensors[name] = strided(bench, name, values)
    return tensors


Known = tuple[dict[str, torch.Tensor] | str, dict[str, torch.Tensor] | str]


class Guarded:
    """A copy of a tensor with bytes round it that nothing may write."""

    ROUND = 4096
    BYTE = 0xA5

    def __init__(self, tensor: torch.Tensor) -> None:
        pairs = zip(tensor.shape, tensor.stride(), strict=True)
        length = 1 + sum((size - 1) * stride for size, stride in pairs) if tensor.numel() else 0
        self.end = self.ROUND + length * tensor.itemsize
        self.bytes = torch.full((self.end + self.ROUND,), self.BYTE, dtype=torch.uint8)
        inside = self.bytes[self.ROUND : self.end].view(tensor.dtype)
        self.tensor = inside.as_strided(tensor.shape, tensor.stride(), inside.storage_offset())
        self.tensor.copy_(tensor)

    def intact(self) -> bool:
        """Whether nothing was written round it."""
        around = self.bytes[: self.ROUND], self.bytes[self.end :]
        return all(bool((each == self.BYTE).all()) for each in around)


def run_reference(
    bench: Bench, tensors: Mapping[str, torch.Tensor], precision: torch.dtype | None = None
) -> dict[str, torch.Tensor] | str:
    """Run the interpreter on copies; returns all tensors, or the message of a failed check."""
    copies = {}
    for name, tensor in tensors.items():
        copy = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype).copy_(tensor)
        copies[name] = copy.to(precision) if precision and copy.is_floating_point() else copy
    try:
        run_body(bench.body, copies, bench.sizes, precision)
    except CheckFailed as error:
        return str(error)
    return copies


def references(bench: Bench, tensors: Mapping[str, torch.Tensor]) -> Known:
    """Run the interpreter in the same precision and in float64."""
    reference = run_reference(bench, tensors)
    return reference, "" if isinstance(reference, str) else run_reference(bench, tensors, F64)


def check(
    bench: Bench,
    tensors: dict[str, torch.Tensor] | None = None,
    *,
    built: Built | None = None,
    threads: Sequence[int] = (1, 2),
    special: bool = False,
    seed: int = 0,
    terms: float = 0.25,
    context: str = "",
    known: Known | None = None,
) -> Built:
    """Build, run, and compare with the interpreter in the same precision and in float64.

    Args:
        known: What the interpreter made of these tensors, where that is known.
        terms: Size of what is added up to a result: errors are judged on that scale at least.
    """
    built = built or Built(bench)
    tensors = tensors or make_inputs(bench, seed, special)
    reference, exact = known or references(bench, tensors)
    for count in threads:
        guarded = {name: Guarded(tensor) for name, tensor in tensors.items()}
        copies = {name: each.tensor for name, each in guarded.items()}
        code = built(copies, count)
        for name, each in guarded.items():
            assert each.intact(), f"{context}: writes outside of {name}"
        if isinstance(reference, str):
            assert code > 0, f"{context}: should fail with {reference}"
            assert built.source.signature.checks[code - 1] == reference, context
            continue
        assert code == 0, f"{context}: check {code} failed"
        for name in bench.buffers:
            wanted, got = reference[name], copies[name]
            truth = exact[name] if isinstance(exact, dict) else wanted
            single = any(node.dtype == F32 for node in bench.body.nodes())
            exactly = bench.exact.get(name, False)
            compare(got, wanted, truth, exactly, single, f"{context} {name}", terms)
    return built


def compare(
    got: torch.Tensor,
    wanted: torch.Tensor,
    truth: torch.Tensor,
    exact: bool,
    single: bool,
    context: str,
    terms: float = 0.25,
) -> None:
    """Require equality, or an error near the interpreter's own.

    Args:
        exact: Whether the results must be equal.
        terms: Size of what is added up to a result.
        single: Whether some of the maths is in float32, whatever the result's type.
    """
    if exact or not got.dtype.is_floating_point:
        torch.testing.assert_close(
            got, wanted, rtol=0, atol=0, equal_nan=True, msg=lambda m: f"{context}: {m}"
        )
        return
    got64, wanted64 = got.to(F64), wanted.to(F64)
    ulp = torch.finfo(F32 if single and got.dtype == F64 else got.dtype).eps
    finite = torch.isfinite(truth) & torch.isfinite(wanted64)
    own = (wanted64 - truth).abs()
    scale = truth.abs().clamp(min=terms)
    allowed = torch.where(finite, 4 * own + 16 * ulp * scale, torch.zeros_like(truth))
    if got.dtype in (F16, BF16):
        allowed = allowed.clamp(min=0) + ulp * scale
    error = (got64 - truth).abs()
    same = (got64 == wanted64) | (torch.isnan(got64) & torch.isnan(wanted64))
    bad = ~(same | (error <= allowed))
    if bool(bad.any()):
        where = tuple(int(i) for i in bad.nonzero()[0])
        raise AssertionError(
            f"{context}: {int(bad.sum())} of {bad.numel()} differ; first at {where}: got "
            f"{got64[where].item()!r}, eager {wanted64[where].item()!r}, "
            f"float64 {truth[where].item()!r}"
        )


# -- random bodies --------------------------------------------------------------------------

SIZES = (1, 2, 3, 5, 7, 8, 16, 17, 33, 64, 100)
LONG = (1, 3, 17, 64, 130, 1000, 5000)
MOST_POINTS = 200_000
EXACT_FLOAT = ("add", "sub", "mul", "maximum", "minimum", "truediv", "fmax", "fmin")
INEXACT = ("exp", "tanh", "sigmoid", "erf", "sin", "cos", "expm1", "log1p", "rsqrt")
UNARY_EXACT = ("neg", "abs", "floor", "ceil", "trunc", "round", "sign")
INT_OPS = ("add", "sub", "mul", "maximum", "minimum", "bitwise_and", "bitwise_or", "bitwise_xor")


class Draw:
    """Draws a random body."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.bench = Bench(name=f"random_{seed}")
        self.values: list[tuple[Node, bool]] = []  # with whether it is exact
        self.layout = self.random.choice(("rows", "rows", "columns", "mixed"))

    def build(self) -> Bench:
        """Return the bench of a random body."""
        with recording():
            self.axes()
            for _ in range(self.random.randint(1, 3)):
                self.load()
            for _ in range(self.random.randint(1, 8)):
                self.operate()
            if self.bench.reduced:
                for _ in range(self.random.randint(1, 3)):
                    if len(self.bench.reduced) == 1 and self.random.random() < 0.4:
                        self.scan()
                    else:
                        self.reduce()
                    for _ in range(self.random.randint(0, 5)):
                        self.operate()
            self.write()
        return self.bench

    def axes(self) -> None:
        rng = self.random
        outer = rng.choice((0, 1, 1, 2, 2, 3))
        reduced = rng.choice((0, 0, 1, 1, 2))
        total = outer + reduced
        long = {outer - 1, total - 1} if total <= 3 else set()
        while True:
            extents = [rng.choice(LONG if n in long else SIZES) for n in range(total)]
            if math.prod(extents) <= MOST_POINTS:
                break
        for number, extent in enumerate(extents):
            value = 0 if rng.random() < 0.03 else extent
            size = self.bench.size(f"s{number}", value) if rng.random() < 0.2 else value
            if number < outer:
                self.bench.axis(size)
            else:
                self.bench.reduce_axis(size)

    def dtype(self) -> torch.dtype:
        return self.random.choice((F32,) * 6 + (BF16, F16, F64, I64, I32, I8, U8, I16, BOOL))

    def load(self) -> None:
        bench, rng = self.bench, self.random
        axes = [a for a in bench.outer + bench.reduced if rng.random() < 0.8]
        if self.layout == "columns":
            axes = [a for a in axes if a in bench.reduced] + [a for a in axes if a in bench.outer]
            if not bench.reduced:
                axes.reverse()
        elif self.layout == "mixed":
            rng.shuffle(axes)
        dtype = self.dtype()
        name = f"x{len(bench.buffers)}"
        shape: list[Expr] = []
        index: list[Expr] = []
        mask: Node | None = None
        for axis in axes:
            size = axis.size
            assert size is not None
            at = Expr.of(axis)
            way = rng.random()
            if way < 0.1:  # a slice of something larger
                shape.append(size + 3)
                index.append(at + rng.randint(0, 3))
            elif way < 0.2:  # shifted: nothing is read in front of the buffer
                shape.append(size)
                index.append(at - 1)
                condition = ops.binary("ge", ops.index_value(at, I64), ops.const(1, I64))
                mask = ops.logical_and(mask, condition)
            elif way < 0.25 and size.constant not in (0, None):  # gathered, through checked indices
                where = f"at{len(bench.buffers)}"
                bench.buffer(where, (size,), I64)
                shape.append(Expr.of(10))
                index.append(ops.checked_index(ops.load(where, (at,), I64), Expr.of(10)))
            elif way < 0.3:  # every second one
                shape.append(size * 2)
                index.append(at * 2 + 1)
            else:
                shape.append(size)
                index.append(at)
        strides = None
        if rng.random() < 0.2 and shape:
            padded = [*shape[:-1], shape[-1] + 5]
            strides = contiguous_strides(padded)
        bench.buffer(name, shape, dtype, strides)
        node = bench.load(name, *index, mask=mask, other=rng.choice((0, 1)))
        self.values.append((node, True))
        if rng.random() < 0.1 and axes:
            self.values.append((ops.index_value(Expr.of(axes[0]) * 2 + 1, I64), True))

    def pick(self, *dtypes: torch.dtype) -> tuple[Node, bool] | None:
        recent = self.values[-3:] if self.random.random() < 0.5 else self.values
        found = [v for v in recent if v[0].dtype in dtypes or not dtypes]
        return self.random.choice(found) if found else None

    def as_dtype(self, value: tuple[Node, bool], dtype: torch.dtype) -> tuple[Node, bool] | None:
        node, exact = value
        if node.dtype.is_floating_point and not dtype.is_floating_point:
            return None  # out of range is not defined
        return ops.cast(node, dtype), exact

    def operate(self) -> None:
        rng = self.random
        first = self.pick()
        assert first is not None
        x, exact = first
        other = self.as_dtype(self.pick() or first, x.dtype) or (x, exact)
        y, also = other
        both = exact and also
        if rng.random() < 0.15:
            y, both = (
                ops.const(rng.choice((2, 3, -1)) if x.dtype not in (BOOL, U8) else 1, x.dtype),
                exact,
            )
        new: tuple[Node, bool]
        way = rng.random()
        if x.dtype == BOOL:
            if way < 0.3:
                new = (
                    ops.binary(rng.choice(("logical_and", "logical_or", "logical_xor")), x, y),
                    both,
                )
            elif way < 0.5:
                new = ops.logical_not(x), exact
            else:
                new = ops.cast(x, rng.choice((F32, I64, I32))), exact
        elif way < 0.12 and both:
            new = ops.binary(rng.choice(("lt", "le", "gt", "ge", "eq", "ne")), x, y), True
        elif way < 0.25 and (condition := self.pick(BOOL)) is not None and condition[1]:
            new = ops.where(condition[0], x, y), both
        elif x.dtype.is_floating_point:
            if way < 0.45:
                new = ops.unary(rng.choice(INEXACT), self.bounded(x)), False
            elif way < 0.6 and exact:
                new = ops.unary(rng.choice(UNARY_EXACT), x), exact
            else:
                new = ops.binary(rng.choice(EXACT_FLOAT), x, y), both
        elif way < 0.5:
            new = ops.binary(rng.choice(INT_OPS), x, y), both
        elif way < 0.6:
            new = ops.unary(rng.choice(("neg", "abs", "bitwise_not", "sign")), x), exact
        elif way < 0.7:
            name = rng.choice(("floordiv", "truncdiv", "remainder", "fmod"))
            new = ops.binary(name, x, ops.const(rng.choice((1, 3, 7)), x.dtype)), exact
        elif way < 0.75:
            count = ops.const(rng.choice((0, 1, 5)), x.dtype)
            new = ops.binary(rng.choice(("lshift", "rshift")), x, count), exact
        else:
            new = ops.cast(x, rng.choice((F32, I64, I32, I8, I16, U8))), exact
        self.values.append(new)

    def bounded(self, x: Node) -> Node:
        """Keep transcendental functions where their error is that of their argument."""
        low, high = ops.const(0.25, x.dtype), ops.const(3.0, x.dtype)
        return ops.binary("minimum", ops.binary("maximum", x, low), high)

    def reduce(self) -> None:
        rng, bench = self.random, self.bench
        value = self.pick()
        assert value is not None
        x, exact = value
        if x.dtype == BOOL:
            kind = rng.choice(("any", "all", "xor"))
        elif not exact:
            kind = rng.choice(("sum", "max", "min"))
        else:
            kind = rng.choice(("sum", "sum", "max", "min", "argmax", "argmin", "prod"))
        if kind == "prod" and x.dtype.is_floating_point:
            kind = "max"
        if x.dtype.is_floating_point and kind == "sum":
            exact = False
            x = self.bounded(x)  # no cancellation: the error of a sum is relative to its terms
        if kind == "sum" and not x.dtype.is_floating_point:
            x = ops.cast(x, I64)
        empty = any(bench.value(a.size) == 0 for a in bench.reduced if a.size is not None)
        if empty and kind.removeprefix("arg") in ("max", "min"):
            return  # lowering refuses extremes of nothing
        self.values.append((bench.reduce(kind, x), exact))

    def scan(self) -> None:
        value = self.pick()
        assert value is not None
        x, exact = value
        kinds = ["max", "min"]
        if exact:
            kinds += ["argmax", "argmin"]
        if x.dtype.is_floating_point:
            kinds += ["sum", "logsumexp"]
        elif x.dtype != BOOL:
            kinds += ["sum", "prod"]
        kind = self.random.choice(kinds)
        if kind in ("sum", "logsumexp") and x.dtype.is_floating_point:
            exact = False
            x = self.bounded(x)
        dtype = I64 if kind.startswith("arg") else x.dtype
        self.values.append((ops.scan(kind, x, self.bench.reduced[0], dtype), exact))

    def write(self) -> None:
        from fusec.ir.walk import free_axes

        rng, bench = self.random, self.bench
        candidates = self.values[-4:]
        chosen = rng.sample(candidates, rng.randint(1, min(3, len(candidates))))
        if bench.reduced and self.values[-1] not in chosen:
            chosen.append(self.values[-1])
        for number, (node, exact) in enumerate(chosen):
            free = free_axes((node,))[node]
            whole = bool(free & set(bench.reduced)) or (bench.reduced and rng.random() < 0.1)
            axes = bench.outer + (bench.reduced if whole else [])
            if rng.random() < 0.15:
                axes = list(axes)
                rng.shuffle(axes)
            dtype = node.dtype
            if dtype == F32 and rng.random() < 0.2:
                dtype = rng.choice((BF16, F16))
            name = f"out{number}"
            shape = [a.size for a in axes if a.size is not None]
            strides = None
            if rng.random() < 0.15 and shape:
                strides = contiguous_strides([*shape[:-1], shape[-1] + 2])
            bench.buffer(name, shape, dtype, strides)
            bench.exact[name] = exact
            bench.store(name, [Expr.of(a) for a in axes], node)


def random_bench(seed: int) -> Bench:
    """Return the random body of ``seed``."""
    return Draw(seed).build()
