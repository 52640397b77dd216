"""A few words that say what a kernel is."""

from __future__ import annotations

from fusec.ir.body import Body, axis_sizes
from fusec.ir.index import Expr
from fusec.ir.node import Reduce
from fusec.targets.triton.plan.attention_gradients import (
    Gradients,
    is_gradient,
    match_gradients,
)
from fusec.targets.triton.plan.choices_attention import match_attention, size_of

_KINDS = {
    "flat": "pointwise",
    "scalar": "one value",
    "tiled": "pointwise in tiles",
    "rows": "pointwise row by row",
}


def _gradients(found: Gradients) -> str:
    names = [("queries", "keys"), ("keys and values", "queries")][found.by_keys]
    if found.captured:
        names = (names[0], "keys, of captured tensors")
    own, over = (size_of(axis) for axis in (found.own, found.over))
    return f"gradients of {found.pairs} x {own} {names[0]} from {over} {names[1]}"


def summarize(body: Body, kind: str) -> str:
    """Return a few words: ``persistent reduction of 4096 x 1024 over 1024``."""
    outer, inner = body.sizes()

    def words(sizes: tuple[Expr, ...]) -> str:
        return " x ".join(str(s) for s in sizes if s != 1) or "1"

    if body.attends:
        if is_gradient(body):
            return _gradients(match_gradients(body))
        found = match_attention(body)
        each = words((found.pairs, found.sizes[0]))
        return f"attention of {each} queries to {words(found.sizes[1:])} keys"
    if body.products:
        (product,) = body.products
        rows = (axis for axis in body.reduce_axes if axis not in product.axes)
        result = words((*outer, *axis_sizes(tuple(rows))))
        return f"matrix product of {result} over {words(axis_sizes(product.axes))}"
    if body.updated():
        return f"updates at {words(outer)}"
    if not body.reduce_axes:
        if kind == "scalar":
            return "one value"
        return f"{_KINDS[kind]} over {words(outer)}"
    what = "reduction"
    if body.scans():
        what = "reduction and scan" if any(isinstance(n, Reduce) for n in body.nodes()) else "scan"
    if words(outer) == "1":
        return f"{kind} {what} of all {words(inner)}"
    if body.sums:
        return f"reduction of {words(outer)} rows over {words(inner)}, and sums of its columns"
    return f"{kind} {what} of {words(outer)} rows over {words(inner)}"
