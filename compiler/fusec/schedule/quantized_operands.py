"""Operands of matrix products that are computed from fewer bits than they have themselves.

A weight of 4 or 8 bits with its scales is a quarter or half of the bytes that it is unpacked to.
With few rows a product takes the time that its weight takes to read, so the matrix is better
never written: a kernel of our own unpacks it in registers.
"""

from __future__ import annotations

from collections.abc import Mapping

from fusec.ir.body import Body, Buffer
from fusec.ir.node import Load
from fusec.ir.program import Compute, Extern, Program
from fusec.ir.walk import walk
from fusec.schedule.choices import buffer_bytes, estimate
from fusec.schedule.choices_products import FEW_ROWS, is_whole

HALF = 9 / 16  # of an operand's bytes: 8 bits with their scales
QUARTER = 5 / 16  # 4 bits with theirs


def packed_operands(program: Program) -> Mapping[str, float]:
    """Return the products of few rows whose large operand is unpacked from bytes.

    Returns:
        The name of each call to what share of the operand's bytes is read to compute it.
    """
    makers: dict[str, Body] = {}
    found: dict[str, float] = {}
    for step in program.steps:
        if isinstance(step, Compute):
            plain = not (step.body.has_reduction or step.body.scans() or step.body.products)
            if plain and len(step.body.stores) == 1 and step.body.stores[0].mode == "set":
                makers[step.body.stores[0].buffer] = step.body
        elif isinstance(step, Extern) and step.body is not None and step.body.products:
            share = _share(step.body, makers, program.buffers)
            if share is not None:
                found[step.name] = share
    return found


def _share(body: Body, makers: Mapping[str, Body], buffers: Mapping[str, Buffer]) -> float | None:
    (product,) = body.products
    sides = [estimate(axis.size) for axis in body.axes[-2:] if axis.size is not None]
    if not sides or min(sides) > FEW_ROWS or max(sides) < 2 * FEW_ROWS:
        return None
    operands = {n.buffer for n in walk(product.args) if isinstance(n, Load)}
    large = max(operands, key=lambda name: buffer_bytes(buffers[name]))
    leaves: set[str] = set()
    stack, seen = [large], set()
    while stack:
        name = stack.pop()
        if name in seen:
            continue
        seen.add(name)
        if name in makers:
            stack.extend(makers[name].reads())
        else:
            leaves.add(name)
    if large in leaves or not any(is_whole(buffers[name].dtype) for name in leaves):
        return None
    share = sum(buffer_bytes(buffers[name]) for name in leaves) / buffer_bytes(buffers[large])
    return share if share <= HALF else None


__all__ = ["HALF", "QUARTER", "packed_operands"]
