"""The text of reductions: identity, one step of a running one, and the end over a tile."""

from __future__ import annotations

import torch

from fusec.codegen.common.identities import COMBINES, ONLINE_SUM, SQUARES, identity, padding_value
from fusec.ir.node import Reduce
from fusec.ir.scalars import SCALARS
from fusec.targets.triton.text.expressions import (
    ATOM,
    COMPARE,
    Needs,
    Text,
    call,
    infix,
    number,
    triton_type,
)

GROUP = "GROUP"  # the rows of a step of which one thread holds its columns' elements


def identity_text(node: Reduce) -> Text:
    """Return the text of a reduction's identity."""
    dtype = node.args[0].dtype
    return number(identity(node.kind, dtype), dtype)


def padding(node: Reduce) -> Text:
    """Return the text of ``padding_value``."""
    return number(padding_value(node), node.args[0].dtype)


def step(node: Reduce, so_far: str, value: Text, needs: Needs) -> Text:
    """Return the text that combines a running tile with the next one."""
    kind, dtype, left = node.kind, node.args[0].dtype, Text(so_far)
    if dtype == torch.bool:
        kind = {"max": "any", "min": "all", "sum": "any", "prod": "all"}.get(kind, kind)
    if kind == "prod":
        return call(needs.helper("multiply"), left, value)
    if kind in ("max", "min"):
        helper = "maximum" if kind == "max" else "minimum"
        return call(
            needs.helper(helper) if dtype.is_floating_point else f"tl.{helper}", left, value
        )
    return infix(SCALARS[COMBINES[kind]].infix, left, value)


def finish(node: Reduce, tile: Text, axis: int, keep: bool, needs: Needs) -> Text:
    """Return the text that reduces a tile along ``axis``.

    Args:
        node: The reduction.
        tile: The tile's text; its masked elements are the identity.
        axis: The tile's reduced dimension.
        keep: Whether the dimension stays, with one element.
        needs: Takes what the text relies on.
    """
    kind, dtype = node.kind, node.args[0].dtype
    end = f", {axis}, keep_dims=True)" if keep else f", {axis})"

    def over(function: str, text: str) -> Text:
        return Text(f"{function}({text}{end}")

    def with_combine(combine: str) -> Text:
        keep_dims = ", keep_dims=True" if keep else ""
        return Text(f"tl.reduce({tile.source}, {axis}, {needs.helper(combine)}{keep_dims})")

    if dtype == torch.bool or kind in ("any", "all", "xor"):
        function = {"any": "tl.max", "max": "tl.max", "sum": "tl.max", "xor": "tl.xor_sum"}.get(
            kind, "tl.min"
        )
        return Text(f"{over(function, f'{tile.within(ATOM)}.to(tl.int32)').source} != 0", COMPARE)
    if kind == "sum":
        found = over("tl.sum", tile.source)
    elif kind == "prod":
        found = with_combine("multiply")
    elif dtype.is_floating_point:
        found = with_combine("maximum" if kind == "max" else "minimum")
    else:
        found = over(f"tl.{kind}", tile.source)
    if not dtype.is_floating_point and dtype.itemsize < 4:
        # Triton widens small integers
        return Text(f"{found.source}.to({triton_type(dtype)})")
    return found


def suggested(node: Reduce, base: str) -> str:
    """Return what to call a reduction's result; ``base`` is its argument's name, if it has one."""
    word = {"sum": "sum", "prod": "product", "argmax": "argmax", "argmin": "argmin"}.get(
        node.kind, node.kind
    )
    if node.kind == ONLINE_SUM:
        return "exp_sum"
    if node.kind == SQUARES:
        return f"{base}_squares" if base else "squares"
    return f"{base}_{word}" if base else f"row_{word}"
