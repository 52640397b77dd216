"""One reduction as C++: what it starts from, how it takes a value, how two of them merge.

An ``Accumulator`` is where a reduction keeps its result so far: a variable, or an element of an
array where a reduction runs for many columns side by side.  Everything here writes to it by name
and does not care which.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import torch

from fusec.codegen.common import identities
from fusec.codegen.common.c_language import ATOM, PRODUCT, UNARY, Expression
from fusec.codegen.common.value_names import reduction_word
from fusec.ir.index import Expr
from fusec.ir.node import Reduce
from fusec.ir.scalars import SCALARS
from fusec.ir.shapes import flatten
from fusec.targets.cpp.dtypes import C_TYPES, SHORT, is_integer, literal
from fusec.targets.cpp.plan import choices
from fusec.targets.cpp.plan.cache_blocks import is_position
from fusec.targets.cpp.plan.loop_plan import LoopConstant
from fusec.targets.cpp.text.scope import KernelWriter, Scope
from fusec.targets.cpp.text.support import function_name, own_name
from fusec.targets.cpp.text.writer import Writer

UNROLL = LoopConstant(
    "UNROLL", choices.UNROLL, choices.UNROLL_CHOICES, "vectors a turn of the loop takes"
)
_CLAUSES = {"sum": "+", "prod": "*", "any": "||", "all": "&&", "xor": "^"}


@dataclass(frozen=True)
class Accumulator:
    """Where a reduction keeps its result so far.

    Attributes:
        node: The reduction.
        place: The variable, or the array element, to read and write.
        dtype: Its type: that of the result, but double where float sums are added up.
        index: For argmax and argmin: where the position is kept; ``place`` has the extreme value.
    """

    node: Reduce
    place: str
    dtype: torch.dtype
    index: str = ""

    @property
    def is_index(self) -> bool:
        """Whether it finds a position."""
        return is_position(self.node)

    @property
    def result(self) -> Expression:
        """The result, when the loop is over."""
        place = self.index or self.place
        if self.dtype != self.node.dtype and not self.is_index:
            return Expression(f"({C_TYPES[self.node.dtype]}){place}", UNARY)
        return Expression(place, ATOM)

    def at(self, index: str) -> Accumulator:
        """Return the element ``index`` of this one's arrays."""
        place = f"{self.place}[{index}]"
        return replace(self, place=place, index=f"{self.index}[{index}]" if self.index else "")


def is_real_sum(node: Reduce) -> bool:
    """Whether a reduction is a sum that rounds."""
    return node.kind == "sum" and node.dtype.is_floating_point


def accumulator(scope: Scope, node: Reduce, prefix: str, *, total: bool = False) -> Accumulator:
    """Name an accumulator; nothing is written yet.

    Args:
        scope: Where it lives.
        node: The reduction.
        prefix: ``row``, ``column``...
        total: Whether sums of sums go into it: floats are added up as doubles then.
    """
    value = node.args[0].dtype if is_position(node) else node.dtype
    wide = total and is_real_sum(node)
    dtype = torch.float64 if wide else value
    word = reduction_word(node).removeprefix("arg")
    prefix = _owner(scope.kernel, node) or prefix if prefix == "row" else prefix
    if wide:  # of chunks, each with a sum
        word = "total" if word == "sum" else f"{word}_total"
    place = scope.name(f"{prefix}_{word}")
    index = scope.name(f"{prefix}_{node.kind}") if is_position(node) else ""
    return Accumulator(node, place, dtype, index)


def _owner(kernel: KernelWriter, node: Reduce) -> str:
    """Return what a reduction is stored in, where there are several of its kind."""
    word = reduction_word(node)
    alike = [n for n in kernel.nodes if isinstance(n, Reduce) and reduction_word(n) == word]
    stored = [store.buffer for store in kernel.body.stores if store.value is node]
    return kernel.names[stored[0]] if len(alike) > 1 and len(stored) == 1 else ""


def identity(node: Reduce, dtype: torch.dtype) -> str:
    """Return what a reduction over nothing is."""
    return literal(identities.identity(node.kind, dtype), dtype)


def start(item: Accumulator, writer: Writer, *, declare: bool = True) -> None:
    """Write the accumulator's first value, as a declaration or as an assignment."""
    first = identity(item.node, item.dtype)
    kind = f"{C_TYPES[item.dtype]} " if declare else ""
    writer.line(f"{kind}{item.place} = {first};", item.node.source)
    if item.index:
        writer.line(f"{'int64_t ' if declare else ''}{item.index} = -1;", item.node.source)


def clause(item: Accumulator, nan: str = "") -> str:
    """Return the ``reduction`` clause of a vector loop.

    Args:
        item: What the loop feeds.
        nan: The flag beside the extreme of floats.
    """
    node = item.node
    name = _CLAUSES.get(node.kind)
    if name is None:
        name = node.kind.removeprefix("arg")
        if item.dtype == torch.bool:
            name = "||" if name == "max" else "&&"
    text = f"reduction({name} : {item.place})"
    return f"{text} reduction(| : {nan})" if nan else text


def has_nan(kernel: KernelWriter, item: Accumulator) -> bool:
    """Whether an accumulator is the extreme of values that may be NaN, and has to mind it.

    In a vector loop it is then two: the extreme of the numbers, which has an instruction, and
    whether there was a NaN. One that minds NaN in every step would be merged lane by lane.
    """
    real = item.dtype.is_floating_point and item.node.kind.endswith(("max", "min"))
    return real and item.node not in kernel.extremes_of_numbers


def take_number(
    scope: Scope, item: Accumulator, nan: str, value: Expression, writer: Writer
) -> None:
    """Write the statements with which an extreme and its flag take a value."""
    source, name = item.node.source, value.text
    if not name.isidentifier():
        name = scope.name("value")
        writer.line(f"const {C_TYPES[item.dtype]} {name} = {value.text};", source)
    sign = ">" if item.node.kind.endswith("max") else "<"
    writer.line(f"{nan} |= {name} != {name};", source)
    writer.line(f"{item.place} = {item.place} {sign} {name} ? {item.place} : {name};", source)


def start_nans(scope: Scope, items: Sequence[Accumulator], writer: Writer) -> dict[str, str]:
    """Write the flags of extremes that a vector loop feeds; return them by the extreme's place."""
    nans = {}
    for item in (item for item in items if has_nan(scope.kernel, item)):
        nan = nans[item.place] = scope.name(f"{item.place}_nan")
        first = "0" if _is_fresh(item, writer) else f"{item.place} != {item.place}"
        writer.line(f"int {nan} = {first};", item.node.source)
    return nans


def _is_fresh(item: Accumulator, writer: Writer) -> bool:
    """Whether nothing but declarations stands between an accumulator's own and what comes next."""
    declared = f"{C_TYPES[item.dtype]} {item.place} = {identity(item.node, item.dtype)};"
    for line in reversed(writer.lines):
        text = line.text.strip()
        if text == declared:
            return True
        if text.endswith(("{", "}")) or item.place in text:
            return False
    return False


def end_nans(items: Sequence[Accumulator], nans: Mapping[str, str], writer: Writer) -> None:
    """Write how flags that were raised become NaN, after the loop."""
    for item in items:
        if item.place in nans:
            writer.line(f"if ({nans[item.place]}) {item.place} = NAN;", item.node.source)


def combined(kernel: KernelWriter, item: Accumulator, value: Expression) -> str:
    """Return the text of the accumulator's value combined with another (not for positions)."""
    kind, dtype, place = item.node.kind.removeprefix("arg"), item.dtype, item.place
    if kind in ("max", "min"):
        if dtype == torch.bool:
            return f"{place} {'|' if kind == 'max' else '&'} {value.within(UNARY)}"
        if item.node in kernel.extremes_of_numbers:
            kernel.use(f"number_max.{SHORT[dtype]}")
            return f"number_max({value.text}, {place})"
        return extreme(kernel, kind, dtype, value.text, place)
    operation = identities.COMBINES[kind]
    sign = SCALARS[operation].infix
    if kind in ("any", "all", "xor"):
        return f"{place} {sign} {value.within(UNARY)}"
    if is_integer(dtype):
        if dtype.is_signed and dtype.itemsize >= 4:
            bits = dtype.itemsize * 8
            kernel.use(own_name(operation, bits))
            return f"{function_name(operation, bits)}({place}, {value.text})"
        return f"({C_TYPES[dtype]})({place} {sign} {value.within(UNARY)})"
    return f"{place} {sign} {value.within(PRODUCT if sign == '+' else UNARY)}"


def extreme(kernel: KernelWriter, kind: str, dtype: torch.dtype, left: str, right: str) -> str:
    """Return the greater (``max``) or the lesser (``min``) of two values that are not bool.

    The new value comes first: the test for NaN is then of the value, which is off the chain of
    dependencies from one iteration to the next.
    """
    if dtype.is_floating_point:
        kernel.use(f"nan_{kind}.{SHORT[dtype]}")
        return f"nan_{kind}({left}, {right})"
    kernel.use(f"{kind}imum.int")
    return f"fx_{kind}imum<{C_TYPES[dtype]}>({left}, {right})"


def take(kernel: KernelWriter, item: Accumulator, value: Expression, writer: Writer) -> None:
    """Write the statement with which an accumulator takes a value (not a position)."""
    real = item.dtype.is_floating_point and item.node.kind in ("sum", "prod")
    source = item.node.source
    if real:
        sign = SCALARS[identities.COMBINES[item.node.kind]].infix
        writer.line(f"{item.place} {sign}= {value.text};", source)
    elif item.dtype == torch.bool or item.node.kind == "xor":
        sign = combined(kernel, item, value).removeprefix(item.place).split()[0]
        writer.line(f"{item.place} {sign}= {value.text};", source)
    else:
        writer.line(f"{item.place} = {combined(kernel, item, value)};", source)


def beats(item: Accumulator, value: str) -> str:
    """Return the condition that ``value`` comes before the extreme so far: NaN beats all."""
    sign = ">" if item.node.kind == "argmax" else "<"
    text = f"{value} {sign} {item.place}"
    if item.dtype.is_floating_point:
        text += f" || ({value} != {value} && {item.place} == {item.place})"
    return f"{item.index} < 0 || {text}"


def take_position(item: Accumulator, value: str, position: str, writer: Writer) -> None:
    """Write how a column's argmax takes a value, as selects: a vector loop has no branches."""
    source = item.node.source
    sign = ">" if item.node.kind == "argmax" else "<"
    better = f"({value} {sign} {item.place}) | ({item.index} < 0)"
    if item.dtype.is_floating_point:
        better += f" | (({value} != {value}) & ({item.place} == {item.place}))"
    with writer.block("", source):
        writer.line(f"const bool better = {better};")
        writer.line(f"{item.place} = better ? {value} : {item.place};")
        writer.line(f"{item.index} = better ? {position} : {item.index};")


def merge(kernel: KernelWriter, item: Accumulator, other: Accumulator, writer: Writer) -> None:
    """Write how an accumulator takes a later one's result."""
    source = item.node.source
    if not item.is_index:
        take(kernel, item, Expression(other.place), writer)
        return
    with writer.block(f"if ({other.index} >= 0 && ({beats(item, other.place)}))", source):
        writer.line(f"{item.place} = {other.place};")
        writer.line(f"{item.index} = {other.index};")


def position(scope: Scope, node: Reduce) -> str:
    """Return the position of the current element in row-major order of the reduced axes."""
    sizes = [axis.size if axis.size is not None else Expr.of(1) for axis in node.axes]
    return scope.index(flatten([Expr.of(axis) for axis in node.axes], sizes))


def simd(
    kernel: KernelWriter,
    items: Sequence[Accumulator],
    writer: Writer,
    nans: Mapping[str, str] = MappingProxyType({}),
    *,
    scalar: bool = False,
) -> None:
    """Write the directive of a vector loop that feeds ``items``, some with a flag for NaN.

    Args:
        kernel: The kernel.
        items: What the loop adds to.
        writer: Where to.
        nans: The flags of extremes.
        scalar: Whether to compute one element at a time after all.
    """
    if not items and not kernel.checked and not scalar:
        value = kernel.wanted.size("UNROLL", UNROLL.value, UNROLL.among)
        writer.directive(f"GCC unroll {kernel.tunable(replace(UNROLL, value=value))}")
        writer.directive("GCC ivdep")
        return
    clauses = ["omp simd safelen(1)" if scalar else "omp simd"]
    clauses += [*(clause(item, nans.get(item.place, "")) for item in items)]
    if kernel.checked:
        clauses.append("reduction(max : failed)")
    writer.directive(" ".join(clauses))
