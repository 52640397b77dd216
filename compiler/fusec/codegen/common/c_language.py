"""What the targets in C++ share: types, constants, how strongly signs bind, how a file begins."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy
import torch

from fusec.codegen.common.expressions import Grammar, Sign, Spelled, from_left
from fusec.ir.body import Body
from fusec.ir.index import Expr
from fusec.ir.node import Number, Reduce, Scan
from fusec.kernel_source import Signature

# Types of which kernels compute values; halves are bits that a target has its own way with.
TYPES = {
    torch.float32: "float",
    torch.float64: "double",
    torch.bool: "bool",
    torch.int8: "int8_t",
    torch.int16: "int16_t",
    torch.int32: "int32_t",
    torch.int64: "int64_t",
    torch.uint8: "uint8_t",
    torch.uint16: "uint16_t",
    torch.uint32: "uint32_t",
    torch.uint64: "uint64_t",
}
HALVES = frozenset({torch.float16, torch.bfloat16})

# How strongly C++ binds, weakest first.
CHOICE, OR, AND, BIT_OR, BIT_XOR, BIT_AND, EQUAL, COMPARE, SUM, PRODUCT, UNARY, ATOM = range(12)
# Beyond what the language asks for: readers know the precedence of sums and products.
GRAMMAR: Grammar = (
    dict.fromkeys("+-", from_left(SUM))
    | dict.fromkeys("*/", from_left(PRODUCT))
    | dict.fromkeys(("<", "<=", ">", ">="), Sign(COMPARE, SUM, SUM))
    | dict.fromkeys(("==", "!="), Sign(EQUAL, SUM, SUM))
    | {"&": Sign(BIT_AND, UNARY, UNARY, chains=True), "^": Sign(BIT_XOR, UNARY, UNARY)}
    | {"|": Sign(BIT_OR, UNARY, UNARY, chains=True)}
    | {"&&": Sign(AND, EQUAL, EQUAL), "||": Sign(OR, EQUAL, EQUAL)}
)

Use = Callable[[str], None]


class UnsupportedNode(TypeError):
    """A node that has no C++: a dtype that no kernel stores, an unknown operation."""


@dataclass(frozen=True)
class Expression(Spelled):
    """C++ text of a value.

    Attributes:
        text: The text.
        strength: How strongly its outermost operator binds.
        reads: Whether it reads memory: it must not move under a condition or past a write.
    """

    strength: int = ATOM
    reads: bool = False


def half_bits(value: Number, dtype: torch.dtype) -> str:
    """Return a number of half precision as the bits that hold it."""
    return f"0x{int(torch.tensor(value, dtype=dtype).view(torch.uint16).item()):04x}"


def literal(value: Number, dtype: torch.dtype) -> str:
    """Return a number as a constant that is exactly what torch would make of it; halves as bits."""
    if dtype == torch.bool:
        return "true" if value else "false"
    if dtype in HALVES:
        return half_bits(value, dtype)
    if dtype.is_floating_point:
        return _real(float(value), dtype)
    number = int(value)
    if number == -(2**63):
        return "INT64_MIN"
    return f"{number}u" if dtype == torch.uint64 and number > 2**63 - 1 else str(number)


def _real(value: float, dtype: torch.dtype) -> str:
    suffix = "f" if dtype == torch.float32 else ""
    if suffix:
        with numpy.errstate(over="ignore"):
            value = float(numpy.float32(value))
    if math.isnan(value):
        return "NAN"
    if math.isinf(value):
        return "INFINITY" if value > 0 else "-INFINITY"
    # the shortest decimal that reads back as the same number
    text = str(numpy.float32(value)) if suffix else repr(value)
    if not any(mark in text for mark in ".e"):
        text += ".0"
    return text + suffix


def summarize(body: Body, pointwise: str, kinds: Mapping[str, str]) -> str:
    """Return a few words on a body: ``sum over 1024 for each of 4096``.

    Args:
        body: What is computed.
        pointwise: What stands before the sizes where nothing is reduced.
        kinds: Other words for kinds of reductions.
    """

    def words(sizes: tuple[Expr, ...]) -> str:
        return " x ".join(str(size) for size in sizes if size != 1) or "one point"

    outer, inner = body.sizes()
    if body.updated():
        return f"updates at {words(outer)}"
    if not body.has_reduction and not body.reduce_axes:
        return f"{pointwise} {words(outer)}"
    found = dict.fromkeys(
        f"{'running ' * isinstance(node, Scan)}{kinds.get(node.kind, node.kind)}"
        for node in body.nodes()
        if isinstance(node, Reduce | Scan)
    )
    what = ", ".join(found) or "row stores"
    where = f" for each of {words(outer)}" if words(outer) != "one point" else ""
    columns = ", and sums of the columns" if body.sums else ""
    return f"{what} over {words(inner)}{where}{columns}"


def head_lines(
    body: Body, signature: Signature, title: str, *, point: str = "scalar"
) -> Iterator[str]:
    """Yield the remarks that a file begins with: what it computes, of what, for which lines.

    Args:
        body: What is computed.
        signature: Of what.
        title: What stands first.
        point: What a tensor without dimensions is called.
    """
    yield f"// {title}."
    for argument in signature.arguments:
        shape = " x ".join(str(size) for size in argument.shape) or point
        verb = {"in": "reads", "out": "writes", "inout": "updates"}[argument.role]
        dtype = str(argument.dtype).removeprefix("torch.")
        yield f"//   {verb} {argument.name}: {shape} {dtype}"
    yield from (f"// {source}" for source in body.origins())


def parameters(
    signature: Signature,
    sizes: Iterable[str],
    types: Mapping[torch.dtype, str],
    *,
    restrict: bool = False,
) -> list[str]:
    """Return the parameters of a kernel's function.

    Args:
        signature: Its tensors.
        sizes: The names of its symbolic sizes.
        types: How memory holds elements.
        restrict: Whether to promise that tensors do not overlap; what is read and written through
            one parameter is promised nothing.
    """
    found = []
    for argument in signature.arguments:
        const = "const " if argument.role == "in" else ""
        alone = " __restrict__" if restrict and argument.role != "inout" else ""
        found.append(f"{const}{types[argument.dtype]}*{alone} {argument.name}")
    return [*found, *(f"int64_t {name}" for name in sizes), "int64_t threads"]
