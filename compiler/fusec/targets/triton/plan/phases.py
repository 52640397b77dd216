"""Results that lie between the elements of a tensor: several of them in one step of the loops.

An image that is enlarged twice has two results for each element along a row, and four of them are
made of the same nine neighbors.  One by one, each computes its places and shares in floating point
and loads four elements (1024 images of 128 x 128 halves: 84 us, bicubic 150 for a quarter of them;
with phases 51 and 40).  Here the axes are cut into *phases*:
``j`` becomes ``2 * j + 0`` and ``2 * j + 1`` in a loop of half the length, each with a store of
its own.  Within a phase a place is ``j`` plus a constant, but for the ends of a row, and a share is
a constant: both are found by computing them for every position while the kernel is written, so that
it does not matter which formula they were computed by.  Loads and what comes of them are shared by
the phases because equal nodes are one.

Several rows go together for the same reason (unroll and jam: Callahan, Carr and Kennedy,
"Improving register allocation for subscripted variables", 1990): two rows of results need three of
the image, eight need six.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import product as combinations

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily

from fusec.ir.along import KnownValues, line_of
from fusec.ir.body import Body, Buffer, Store
from fusec.ir.index import Expr, Symbol
from fusec.ir.node import indirect_nodes
from fusec.ir.shapes import product
from fusec.targets.triton.plan.choice import known, power_of_two, sms
from fusec.targets.triton.plan.tiling import by_stride

PHASES = (1, 2, 4)
ROWS_A_STEP = (4, 2, 1)  # rows of phases in one step
MOST_STORES = 32
LEAST_WAVES = 8


def cut_into_phases(body: Body, buffers: Mapping[str, Buffer]) -> Body:
    """Return a body with as many stores a step as there are phases; ``body`` where none are found.

    Args:
        body: What to compute, over axes of known sizes.
        buffers: By name.
    """
    if body.reduce_axes or any(store.mode != "set" for store in body.stores):
        return body
    with unset_fake_temporarily():  # graphs are compiled while torch traces with fake tensors
        return found_phases(body, buffers)


def found_phases(body: Body, buffers: Mapping[str, Buffer]) -> Body:
    """Return what ``cut_into_phases`` does, of a body that stores elements and no more."""
    places = list(dict.fromkeys(n for load in body.loads() for n in indirect_nodes(load.index)))
    known_values = KnownValues()
    axes = {place: known_values.axis_of(place) for place in places}
    if not places or None in axes.values():
        return body
    counts: dict[Symbol, int] = {}
    for axis in dict.fromkeys(axes.values()):
        assert axis is not None
        tables = [known_values.table(place, axis) for place, along in axes.items() if along is axis]
        count = next((c for c in PHASES if all(are_places(t, c) for t in tables)), 0)
        if not count:
            return body
        counts[axis] = count
    order = [a for a in by_stride(body, buffers, body.axes) if a.size != 1]
    inner = order[-1]
    if counts.get(inner, 0) not in (1, 2) or not fills_tile(size_of(inner) // counts[inner]):
        return body
    row = order[-2] if len(order) > 1 else None
    if row is not None and counts.get(row, 1) > 1:
        points = known(product(a.size for a in body.axes if a.size is not None))
        phases = math.prod(counts.values())
        counts[row] *= next(
            rows
            for rows in ROWS_A_STEP
            if rows == 1
            or (
                size_of(row) % (4 * counts[row] * rows) == 0
                and points // (phases * rows) >= LEAST_WAVES * sms() * 128
                and phases * rows * len(body.stores) <= MOST_STORES
            )
        )
    return cut(body, counts, known_values)


def size_of(axis: Symbol) -> int:
    """Return the extent of an axis of known size."""
    assert axis.size is not None
    assert axis.size.constant is not None
    return axis.size.constant


def fills_tile(columns: int) -> bool:
    """Whether rows of so many columns make tiles of which at most a quarter is idle."""
    across = min(power_of_two(columns), 128)
    return columns >= 16 and -(-columns // across) * across * 3 <= columns * 4


def cut(body: Body, counts: Mapping[Symbol, int], known_values: KnownValues) -> Body:
    """Return ``body`` with each axis of ``counts`` cut into so many phases."""
    axes = {a: Symbol(a.name, "axis", Expr.of(size_of(a) // counts[a])) for a in counts}
    moved = tuple(axes.get(axis, axis) for axis in body.axes)
    stores: list[Store] = []
    for phases in combinations(*(range(count) for count in counts.values())):
        mapping = {
            axis: counts[axis] * Expr.of(axes[axis]) + phase
            for axis, phase in zip(counts, phases, strict=True)
        }
        stores += body.moved(moved, (), mapping, known_values.simplified).stores
    return Body(moved, (), tuple(stores))


def are_places(table: torch.Tensor, phases: int) -> bool:
    """Whether each phase of a table is a place: ``a * j + b`` within bounds.

    Several phases are worth it only where they share elements: where a place moves by less than
    one a result.
    """
    if len(table) % phases or len(table) < 4 * phases:
        return False
    lines = [line_of(phase) for phase in table.reshape(-1, phases).unbind(1)]
    return all(line is not None and (phases == 1 or abs(line[0]) < phases) for line in lines)


__all__ = ["cut_into_phases"]
