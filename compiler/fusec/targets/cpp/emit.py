"""From a body to the text of a C++ kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from fusec.codegen.common.c_language import head_lines, parameters, summarize
from fusec.codegen.common.operation_count import count_operations
from fusec.codegen.common.patterns import (
    half_form,
    index_nodes,
    replace_values,
    use_one_plus,
    use_slope,
)
from fusec.codegen.common.relaxed_maths import (
    coarse_nodes,
    is_softmax_weight,
    never_positive,
    relaxed_nodes,
)
from fusec.codegen.common.signatures import body_sizes, identifier, make_signature
from fusec.codegen.common.traffic import read_bytes, written_bytes
from fusec.helper_block import HEAD, INCLUDE
from fusec.ir.body import Body, Buffer
from fusec.ir.node import Node, Op, Reduce, op
from fusec.kernel_source import KernelSource, Signature
from fusec.targets.cpp.dtypes import C_TYPES, ELEMENT_TYPES
from fusec.targets.cpp.loops.columns import write_columns
from fusec.targets.cpp.loops.pointwise import write_pointwise
from fusec.targets.cpp.loops.row_and_column import write_crossed
from fusec.targets.cpp.loops.rows import write_rows
from fusec.targets.cpp.loops.scatter import write_updates
from fusec.targets.cpp.loops.short_rows import write_narrow
from fusec.targets.cpp.loops.split_reductions import write_pieces
from fusec.targets.cpp.plan.axes import without_unit_axes
from fusec.targets.cpp.plan.choose import plan_loops
from fusec.targets.cpp.plan.loop_plan import LoopPlan
from fusec.targets.cpp.plan.wanted import Wanted
from fusec.targets.cpp.text.scope import KernelWriter, Scope
from fusec.targets.cpp.text.support import END, OWN_NAMES, helper_texts
from fusec.targets.cpp.text.writer import Writer

_RESERVED = OWN_NAMES | frozenset(
    "threads failed lane count LINE INFINITY NAN GRAIN ROWS COLUMNS PIECES BLOCK UNROLL TILE_ROWS "
    "TILE_COLUMNS mark better pair".split()
)

_WRITERS: dict[str, Callable[..., None]] = {
    "pointwise": write_pointwise,
    "rows": write_rows,
    "columns": write_columns,
    "short_rows": write_narrow,
    "split_reduction": write_pieces,
    "row_and_column": write_crossed,
    "scatter": write_updates,
}

_DEFINES = {
    "INFINITY": "#define INFINITY __builtin_inff()",
    "NAN": '#define NAN __builtin_nanf("")',
}


def emit_cpp(
    name: str,
    body: Body,
    buffers: Mapping[str, Buffer],
    *,
    label: str = "",
    strategy: str = "",
    settings: tuple[tuple[str, int], ...] = (),
) -> KernelSource:
    """Write a kernel for ``body``.

    Args:
        name: The kernel's name; its C++ function is called the same.
        body: What it computes.
        buffers: Every buffer that the body names.
        label: A few words on what it is, for its head.
        strategy: The kind of loops, in place of the heuristics' choice: see ``plan.wanted``.
        settings: Techniques to leave out, with 0, and sizes: likewise.

    Raises:
        BadOption: There is no such kind of loops, or no such setting.
        UnsupportedNode: A value has a type or an operation that has no C++.
    """
    body = _use_patterns(body)
    signature, names = make_signature(body, buffers, _RESERVED)
    body = without_unit_axes(body)
    plan = plan_loops(body, buffers, Wanted(strategy, settings))
    kernel = _kernel(body, buffers, names, signature, plan)
    entry = identifier(name, set(), "kernel")
    scope = Scope(kernel)
    scope.taken = {*names.values(), *kernel.size_names.values(), *_RESERVED, entry}

    code = Writer(1)
    if kernel.checked:
        code.line("int failed = 0; // the number of a check that failed")
    _WRITERS[plan.kind](kernel, plan.loops, scope, code)
    if END in kernel.helpers:
        code.line(f"{END}();")
    code.line("return failed;" if kernel.checked else "return 0;")

    for argument in signature.arguments:
        if C_TYPES[argument.dtype].startswith("fx_"):
            kernel.use(f"to_float.{C_TYPES[argument.dtype].removeprefix('fx_')}")
    summary = summarize(body, "pointwise over", {})
    file = _assemble(kernel, code, entry, label or name, summary)
    return KernelSource(
        name=name,
        target="cpp",
        entry=entry,
        text=file.text,
        signature=signature,
        origins=file.origins,
        read_bytes=read_bytes(body, buffers),
        written_bytes=written_bytes(body, buffers),
        operations=count_operations(body),
        summary=summary,
        plan=str(plan),
        alternatives=tuple(plan.alternatives()),
    )


def _kernel(
    body: Body,
    buffers: Mapping[str, Buffer],
    names: Mapping[str, str],
    signature: Signature,
    plan: LoopPlan,
) -> KernelWriter:
    """Return the kernel to be written: with names for its sizes."""
    taken = {argument.name for argument in signature.arguments} | _RESERVED
    sizes = {}
    for symbol in body_sizes(body, buffers):
        sizes[symbol] = identifier(symbol.name, taken, "n")
    streamed, wanted = plan.streamed, plan.wanted
    return KernelWriter(body, buffers, names, signature, sizes, streamed=streamed, wanted=wanted)


def _assemble(kernel: KernelWriter, code: Writer, entry: str, label: str, summary: str) -> Writer:
    """Return the file: what it computes, the kernel, and at the end what that calls."""
    file = Writer()
    for line in head_lines(kernel.body, kernel.signature, f"{label}: {summary}"):
        file.line(line)
    file.line("#include <stdint.h>")
    helpers = helper_texts(kernel.helpers)
    texts = [line.text for line in code.lines]
    defines = [line for word, line in _DEFINES.items() if any(word in text for text in texts)]
    if helpers or defines:
        file.line(INCLUDE)
    file.line()
    file.lines_of([*kernel.tunables.values(), *kernel.asserts])
    if kernel.tunables:
        file.line()
    sizes = kernel.size_names.values()
    given = parameters(kernel.signature, sizes, ELEMENT_TYPES, restrict=True)
    file.line(f'extern "C" int {entry}({", ".join(given)})')
    file.line("{")
    file.lines.extend(code.lines)
    file.line("}")
    if helpers or defines:
        file.line()
        file.line(HEAD)
        file.line()
        file.lines_of(defines)
        file.lines_of(helpers.rstrip("\n").splitlines())
    return file


def _use_patterns(body: Body) -> Body:
    fixed = index_nodes(body)
    body = use_one_plus(body, ("erf",), lambda n: n.dtype == torch.float32 and n not in fixed)
    if any(isinstance(n, Op) and half_form(n.name) for n in body.nodes()):
        relaxed, coarse = relaxed_nodes(body), coarse_nodes(body)

        def for_half(node: Node, done: Mapping[Node, Node]) -> Node | None:
            if not isinstance(node, Op) or node not in relaxed:
                return None
            name = half_form(node.name, coarse=node in coarse)
            return op(name, (done[node.args[0]],), node.dtype) if name else None

        body = replace_values(body, for_half)
    return replace_values(use_slope(body), _nonpositive_power)


def _nonpositive_power(node: Node, done: Mapping[Node, Node]) -> Node | None:
    """Return a power of what is never above 0 by the function for that."""
    if not isinstance(node, Op) or node.name != "exp":
        return None
    # A maximum of which infinities are replaced may be below what it is taken from.
    weight = is_softmax_weight(node) and isinstance(node.args[0].args[1], Reduce)
    if not weight and not never_positive(node.args[0]):
        return None
    return op("exp_nonpositive", (done[node.args[0]],), node.dtype)


__all__ = ["emit_cpp"]
