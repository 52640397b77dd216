"""Row reductions: for each outer point, passes over the reduced axes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from fusec.codegen.cpp import choices
from fusec.codegen.cpp.dtypes import C_TYPES, highest, is_integer, literal, lowest
from fusec.codegen.cpp.expressions import Expression, cast_expression
from fusec.codegen.cpp.loops import head, may_thread, outer_loops
from fusec.codegen.cpp.scope import Kernel, Scope
from fusec.codegen.cpp.support import own_name
from fusec.codegen.cpp.writer import Writer
from fusec.codegen.passes import Pass, PassPlan, plan_passes
from fusec.ir.index import Expr, Symbol, flatten
from fusec.ir.node import Load, Node, Reduce, walk

_CLAUSES = {"sum": "+", "prod": "*", "any": "|", "all": "&", "xor": "^"}


@dataclass
class Accumulator:
    """A reduction while its loop runs.

    Attributes:
        node: The reduction.
        name: The variable that holds the result so far.
        part: The variable that the innermost loop adds to, where that is another one.
        index: For argmax and argmin: the variable with the position.
    """

    node: Reduce
    name: str
    part: str = ""
    index: str = ""


def write_rows(kernel: Kernel, scope: Scope, writer: Writer) -> None:
    """Write a body with reductions, a row at a time."""
    plan = plan_passes(kernel.body)
    everything = set(kernel.body.nodes())
    with outer_loops(kernel, scope, writer, kernel.body.axes) as row:
        for step in delayed_updates(kernel, plan):
            row.compute(
                step.before, writer, stores=step.row_stores, later=everything - set(step.before)
            )
            for store in step.row_stores:
                row.store(store, writer)
            if step.loops:
                _write_pass(kernel, row, writer, step)


def delayed_updates(kernel: Kernel, plan: PassPlan) -> tuple[Pass, ...]:
    """Move every store to a buffer that is read too behind the last pass that reads it.

    All values of a point are read before anything is written.
    """
    passes = list(plan.passes)
    nodes = kernel.body.nodes()
    for buffer in kernel.updated:
        last = max(
            number
            for number, step in enumerate(passes)
            if any(isinstance(n, Load) and n.buffer == buffer for n in step.before + step.inside)
        )
        for number in range(last):
            step = passes[number]
            whole = tuple(s for s in step.stores if s.buffer == buffer)
            single = tuple(s for s in step.row_stores if s.buffer == buffer)
            if whole:
                wanted = {n for n in walk(tuple(s.value for s in whole)) if n in plan.elementwise}
                wanted.update(passes[last].inside)
                passes[number] = replace(
                    passes[number], stores=tuple(s for s in step.stores if s not in whole)
                )
                passes[last] = replace(
                    passes[last],
                    stores=passes[last].stores + whole,
                    inside=tuple(node for node in nodes if node in wanted),
                )
            if single:
                passes[number] = replace(
                    passes[number], row_stores=tuple(s for s in step.row_stores if s not in single)
                )
                if last + 1 == len(passes):
                    passes.append(Pass((), (), (), (), ()))
                passes[last + 1] = replace(
                    passes[last + 1], row_stores=passes[last + 1].row_stores + single
                )
    return tuple(passes)


def _write_pass(kernel: Kernel, row: Scope, writer: Writer, step: Pass) -> None:
    *outer, last = kernel.body.reduce_axes
    size = last.size.constant if last.size is not None else 1
    chunked = size is None or size > choices.SUM_CHUNK
    split = bool(outer) or chunked
    accumulators = []
    for node in step.reductions:
        accumulator = _declare(kernel, row, writer, node, split)
        accumulators.append(accumulator)
    _write_levels(kernel, row, writer, step, accumulators, list(outer), chunked)
    for accumulator in accumulators:
        node = accumulator.node
        value = accumulator.index or accumulator.name
        if accumulator.part:
            final = row.name(f"{accumulator.name.removesuffix('_total')}_sum")
            writer.line(
                f"const {C_TYPES[node.dtype]} {final} = ({C_TYPES[node.dtype]}){value};",
                node.source,
            )
            value = final
        row.values[node] = Expression(value)


def _write_levels(
    kernel: Kernel,
    scope: Scope,
    writer: Writer,
    step: Pass,
    accumulators: list[Accumulator],
    outer: list[Symbol],
    chunked: bool,
) -> None:
    """Write the loops over the reduced axes, each value at the outermost loop that knows it."""
    remaining = set(outer) | {kernel.body.reduce_axes[-1]}
    level = [node for node in step.inside if not kernel.free[node] & remaining]
    scope.compute(level, writer, later=set(step.inside) - set(level) | set(step.reductions))
    if outer:
        inner = Scope(kernel, scope)
        with writer.block(head(inner, outer[0])):
            _write_levels(kernel, inner, writer, step, accumulators, outer[1:], chunked)
        return
    last = kernel.body.reduce_axes[-1]
    inner = Scope(kernel, scope)
    parts = [a for a in accumulators if a.part]
    name = inner.bind(last)
    extent = kernel.extent(last)

    def vector_loop(begin: str, end: str) -> None:
        for accumulator in parts:
            kind = C_TYPES[accumulator.node.dtype]
            writer.line(f"{kind} {accumulator.part} = 0;", accumulator.node.source)
        _directive(kernel, writer, step, accumulators)
        with writer.block(f"for (int64_t {name} = {begin}; {name} < {end}; ++{name})"):
            inner.compute(step.inside, writer, ends=_direct(step.reductions), stores=step.stores)
            for accumulator in accumulators:
                _update(kernel, inner, writer, accumulator)
            for store in step.stores:
                inner.store(store, writer)
        for accumulator in parts:
            writer.line(f"{accumulator.name} += {accumulator.part};", accumulator.node.source)

    if chunked and parts:
        chunk = inner.name("chunk")
        kernel.use("at_most")
        size = choices.SUM_CHUNK
        with writer.block(f"for (int64_t {chunk} = 0; {chunk} < {extent}; {chunk} += {size})"):
            end = inner.name("chunk_end")
            writer.line(f"const int64_t {end} = at_most({chunk} + {size}, {extent});")
            vector_loop(chunk, end)
    else:
        vector_loop("0", extent)


def _direct(reductions: Sequence[Reduce]) -> set[Node]:
    """Return the reductions that name their argument once."""
    return {r for r in reductions if r.kind not in ("argmax", "argmin")}


def _directive(
    kernel: Kernel, writer: Writer, step: Pass, accumulators: Sequence[Accumulator]
) -> None:
    if not may_thread(kernel) or any(a.index for a in accumulators):
        return  # a loop that must run in order
    clauses = ["omp simd"]
    for accumulator in accumulators:
        variable = accumulator.part or accumulator.name
        clauses.append(f"reduction({clause(kernel, accumulator.node)} : {variable})")
    if kernel.checked:
        clauses.append("reduction(max : failed)")
    writer.directive(" ".join(clauses))


def clause(kernel: Kernel, node: Reduce) -> str:
    """Return how a reduction is named in a directive."""
    if node.kind in ("max", "min"):
        if not node.dtype.is_floating_point:
            return node.kind if node.dtype != torch.bool else "|" if node.kind == "max" else "&"
        kernel.reductions.add((node.kind, node.dtype))
        return f"nan_{node.kind}"
    return _CLAUSES[node.kind]


def _declare(kernel: Kernel, row: Scope, writer: Writer, node: Reduce, split: bool) -> Accumulator:
    kind = C_TYPES[node.dtype]
    source = node.source
    if node.kind in ("argmax", "argmin"):
        value = node.args[0].dtype
        index = row.name(f"row_{node.kind}")
        best = row.name("row_best")
        start = lowest(value) if node.kind == "argmax" else highest(value)
        writer.line(f"int64_t {index} = -1;", source)
        writer.line(f"{C_TYPES[value]} {best} = {start};", source)
        return Accumulator(node, best, index=index)
    if node.kind == "sum" and node.dtype.is_floating_point and split:
        total = row.name("row_total")
        writer.line(f"double {total} = 0;", source)
        return Accumulator(node, total, part=row.name("part"))
    name = row.name(f"row_{node.kind}")
    writer.line(f"{kind} {name} = {identity(node)};", source)
    return Accumulator(node, name)


def identity(node: Reduce) -> str:
    """Return what a reduction over nothing is."""
    dtype = node.dtype
    if node.kind == "max":
        return "false" if dtype == torch.bool else lowest(dtype)
    if node.kind == "min":
        return "true" if dtype == torch.bool else highest(dtype)
    one = node.kind in ("prod", "all")
    return literal(1 if one else 0, dtype)


def _update(kernel: Kernel, scope: Scope, writer: Writer, accumulator: Accumulator) -> None:
    node = accumulator.node
    arg = node.args[0]
    value = scope.values[arg]
    target = accumulator.part or accumulator.name
    source = node.source
    if accumulator.index:
        _update_index(scope, writer, accumulator, value)
        return
    value = cast_expression(arg.dtype, node.dtype, value, kernel.use)
    if node.kind in ("max", "min"):
        writer.line(f"{target} = {_extreme(kernel, node, target, value)};", source)
    elif node.kind in ("any", "all", "xor"):
        sign = {"any": "|", "all": "&", "xor": "!="}[node.kind]
        writer.line(f"{target} = {target} {sign} {value.within(0)};", source)
    elif is_integer(node.dtype):
        operation = "add" if node.kind == "sum" else "mul"
        writer.line(f"{target} = {wrapped(kernel, operation, node.dtype, target, value)};", source)
    else:
        writer.line(f"{target} {'+' if node.kind == 'sum' else '*'}= {value.text};", source)


def wrapped(
    kernel: Kernel, operation: str, dtype: torch.dtype, left: str, right: Expression
) -> str:
    """Return integer arithmetic that wraps around."""
    if dtype.is_signed and dtype.itemsize >= 4:
        kernel.use(own_name(operation, dtype.itemsize * 8))
        return f"wrap_{operation}({left}, {right.text})"
    sign = "+" if operation == "add" else "*"
    return f"({C_TYPES[dtype]})({left} {sign} {right.within(1)})"


def _extreme(kernel: Kernel, node: Reduce, left: str, right: Expression) -> str:
    if node.dtype == torch.bool:
        return f"{left} {'|' if node.kind == 'max' else '&'} {right.within(0)}"
    name = "maximum" if node.kind == "max" else "minimum"
    if node.dtype.is_floating_point:
        kernel.use(f"{name}.{'f32' if node.dtype == torch.float32 else 'f64'}")
        return f"fx_{name}({left}, {right.text})"
    kernel.use(f"{name}.int")
    return f"fx_{name}<{C_TYPES[node.dtype]}>({left}, {right.text})"


def _update_index(
    scope: Scope, writer: Writer, accumulator: Accumulator, value: Expression
) -> None:
    """Take the first of the greatest; NaN is greater than all, and the first NaN stays."""
    node = accumulator.node
    best, index = accumulator.name, accumulator.index
    sign = ">" if node.kind == "argmax" else "<"
    sizes = [axis.size for axis in node.axes if axis.size is not None]
    position = scope.index(flatten([Expr.of(axis) for axis in node.axes], sizes))
    text = value.within(0)
    better = f"{text} {sign} {best}"
    if node.args[0].dtype.is_floating_point:
        better += f" || ({text} != {text} && {best} == {best})"
    with writer.block(f"if ({index} < 0 || {better})", node.source):
        writer.line(f"{best} = {text};")
        writer.line(f"{index} = {position};")


__all__ = ["write_rows"]
