"""Rows of symbolic sizes that are short: a guard says so, and kernels hold them in registers.

A softmax or a norm reads its row two or three times unless a program holds it.  How long a row may
get decides whether one can, so it must be known for every call that a kernel is used for.  Where
the row of this call is short enough, that becomes a guard: a longer one is compiled for again,
once.  Sizes with bounds of the user's own (``mark_dynamic(x, 0, max=...)``) get no others.
"""

from __future__ import annotations

from math import prod
from typing import Any

import sympy  # type: ignore[import-untyped]
import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv, StrictMinMaxConstraint
from torch.utils._sympy.functions import FloorDiv

aten = torch.ops.aten

LONGEST_ROW = 16384  # elements that a program holds in registers, with two programs an SM

# Operators that read a row more than once, and where they say along which dimensions it lies.
_ALONG: dict[Any, int] = {
    aten._softmax.default: 1,
    aten._log_softmax.default: 1,
    aten._softmax_backward_data.default: 2,
    aten._log_softmax_backward_data.default: 2,
    aten.var.correction: 1,
    aten.var_mean.correction: 1,
    aten.std.correction: 1,
    aten.std_mean.correction: 1,
}
# Those that do so where the dimensions stay, in which case something is done with the row after.
_ALONG_KEPT: dict[Any, int] = {
    aten.sum.dim_IntList: 1,
    aten.mean.dim: 1,
    aten.amax.default: 1,
    aten.amin.default: 1,
    aten.logsumexp.default: 1,
}


def bound_rows(module: fx.GraphModule, *, interpreted: bool) -> int:
    """Guard the lengths of rows that fit into registers now; return how many guards there are new.

    Only rows on a GPU that are one stretch of memory count.

    Args:
        module: A graph of ATen operators; it stays as it is.
        interpreted: Whether what is on the CPU stands for what is on a GPU.
    """
    rows = [_row(node, interpreted) for node in module.graph.nodes]
    found = {row.node.expr: row for row in rows if isinstance(row, torch.SymInt)}
    return sum(_bounded(row) for row in found.values())


def _row(node: fx.Node, interpreted: bool) -> int | torch.SymInt | None:
    """Return how many elements the rows of an operator have; None where it has none."""
    dims: Any
    if node.target is aten.native_layer_norm.default:
        dims = range(-len(_argument(node, 1, "normalized_shape")), 0)
    elif node.target in _ALONG:
        dims = _argument(node, _ALONG[node.target], "dim")
    elif node.target in _ALONG_KEPT and _argument(node, 2, "keepdim") is True:
        dims = _argument(node, _ALONG_KEPT[node.target], "dim")
    else:
        return None
    source = node.args[0]
    value = source.meta.get("val") if isinstance(source, fx.Node) else None
    if not isinstance(value, torch.Tensor) or value.dim() == 0:
        return None
    if value.device.type == "cpu" and not interpreted:
        return None
    given = [dims] if isinstance(dims, int) else list(dims or range(value.dim()))
    if not any(isinstance(s := value.stride(d), int) and s == 1 for d in given):
        return None  # a column
    return prod(value.shape[d] for d in given)


def _argument(node: fx.Node, place: int, name: str) -> Any:
    """Return an argument of an operator, None where it is not given."""
    return node.args[place] if len(node.args) > place else node.kwargs.get(name)


def _bounded(row: torch.SymInt) -> bool:
    expr, shapes, hint = row.node.expr, row.node.shape_env, row.node.hint
    if len(expr.free_symbols) != 1 or hint is None or hint > LONGEST_ROW:
        return False  # of a product of sizes, no guard bounds each
    if shapes is None or shapes.frozen or _has_bounds(shapes):
        return False
    if shapes.bound_sympy(expr).upper <= LONGEST_ROW:
        return False
    times, size = expr.as_coeff_Mul()
    part = isinstance(size, FloorDiv) and size.args[1].is_Integer
    if not (size.is_Symbol or (part and size.args[0].is_Symbol)):
        return False  # nothing about the size would follow
    return bool(shapes.evaluate_expr(sympy.Le(size, LONGEST_ROW // int(times))))


def _has_bounds(shapes: ShapeEnv) -> bool:
    """Whether the user said how large or small a size may be: narrower guards are an error then."""
    contexts = (getattr(each, "symbolic_context", None) for each in shapes.tracked_fakes or ())
    return any(
        isinstance(constraint, StrictMinMaxConstraint)
        for context in contexts
        for constraint in getattr(context, "constraint_sizes", ())
    )


__all__ = ["LONGEST_ROW", "bound_rows"]
