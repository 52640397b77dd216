"""Whether what a package says in two places is the same: its guards, its weights and its programs.

A kernel reads as far as its program says. So a tensor that a guard lets in, and a weight, must be
what the program says of it, and a buffer must have memory before a step reads it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .errors import DamagedPackage
from .expressions import Expression, evaluate
from .guards import Guard, TensorGuard
from .layout import Native, Operator, Started, StoredProgram, StoredTensor, View
from .weights import Weight


def require_weights(program: StoredProgram, weights: Sequence[Weight]) -> None:
    """Refuse a program that takes a weight for another tensor than it is.

    Raises:
        DamagedPackage: It does.
    """
    for buffer in program.buffers:
        if buffer.role != "weight":
            continue
        weight = weights[buffer.source]
        same = weight.dtype == buffer.dtype and _alike(
            weight.shape, weight.strides, buffer.shape, buffer.strides
        )
        if not same:
            raise DamagedPackage(
                f"{program.name} takes {weight.name} for another tensor than it is"
            )


def require_inputs(
    program: StoredProgram, guards: Sequence[Guard], sizes: Mapping[str, int]
) -> None:
    """Refuse a program that takes an argument for another tensor than its guard lets in.

    Raises:
        DamagedPackage: It does.
    """
    for buffer in program.buffers:
        if buffer.role != "input":
            continue
        guard = guards[buffer.source]
        if not isinstance(guard, TensorGuard) or not _fits(guard, buffer, sizes):
            raise DamagedPackage(
                f"{program.name} takes {guard.name} for another tensor than its guard lets in"
            )


def _fits(guard: TensorGuard, buffer: StoredTensor, sizes: Mapping[str, int]) -> bool:
    shape, strides, asked, steps = (
        [evaluate(each, sizes) for each in values]
        for values in (buffer.shape, buffer.strides, guard.shape, guard.strides)
    )
    kind = guard.dtype == buffer.dtype and guard.device == buffer.device
    return kind and _alike(asked, steps, shape, strides)


def _alike(
    shape: Sequence[int],
    strides: Sequence[int],
    other_shape: Sequence[Expression],
    other_strides: Sequence[Expression],
) -> bool:
    if list(shape) != list(other_shape):
        return False
    if 0 in shape:
        return True
    pairs = zip(shape, strides, other_strides, strict=True)
    return all(size == 1 or left == right for size, left, right in pairs)


def require_order(program: StoredProgram, steps: Sequence[Native | Operator | Started]) -> None:
    """Refuse steps that read what has no memory yet, and results that nothing made.

    Raises:
        DamagedPackage: There is one.
    """
    there = {n for n, buffer in enumerate(program.buffers) if buffer.role != "made"}
    for step in steps:
        if isinstance(step, Operator):
            needed = views_of([*step.arguments, *step.keywords.values()])
            made = {number for number in step.outputs if number is not None}
        else:
            made = set(step.made)
            needed = set(step.buffers) - made
        if not needed <= there or any(program.buffers[n].role != "made" for n in made):
            raise DamagedPackage(f"{program.name} has a step that reads what is not made yet")
        there |= made
    if not views_of(program.outputs) <= there:
        raise DamagedPackage(f"{program.name} returns what nothing made")


def views_of(values: Sequence[Any]) -> set[int]:
    """Return the buffers that are named in arguments, lists within them included."""
    found, pending = set(), list(values)
    while pending:
        each = pending.pop()
        if isinstance(each, View):
            found.add(each.buffer)
        elif isinstance(each, list):
            pending += each
    return found


__all__ = ["require_inputs", "require_order", "require_weights", "views_of"]
