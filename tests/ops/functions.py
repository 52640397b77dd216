"""torch's lists of functions that users write: ``autograd.Function`` and custom operators."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch.testing._internal.autograd_function_db import autograd_function_db
from torch.testing._internal.custom_op_db import custom_op_db
from torch.testing._internal.opinfo.core import OpInfo
from torch.utils._pytree import tree_leaves, tree_map

from ops.databases import Asked, Unit, short
from ops.judge import Case, Sample, Wrap, judge_all, shown
from ops.layouts import layouts
from ops.unit import FORWARD, case_of, copy, gradients, raised, seed_of
from support import repro
from support.opinfo import name_of, quiet

BACKWARD = (torch.float32, torch.float64)
# Second gradients are a unit of their own: AOTAutograd refuses them where it made the first.
_DIRECTIONS = {"forward": ("forward",), "backward": ("backward", "twice")}


def names() -> list[str]:
    """Return the names of the functions."""
    return list(_functions())


def _functions() -> dict[str, OpInfo]:
    return {name_of(op): op for op in (*autograd_function_db, *custom_op_db)}


def asked_units(name: str, asked: Asked) -> Iterator[Unit]:
    """Yield what there is to run of a function."""
    op = _functions()[name]
    for direction, ways in _DIRECTIONS.items():
        dtypes = FORWARD if direction == "forward" else BACKWARD
        for way in ways if direction in asked.directions else ():
            for dtype in dtypes:
                if dtype in op.dtypes and short(dtype) in asked.dtypes:
                    run = partial(_run, name, way, dtype, asked.samples, asked.dynamic)
                    yield Unit(short(dtype), way, run)


def _run(
    name: str, way: str, dtype: torch.dtype, limit: int, dynamic: bool, backend: str
) -> list[Sample]:
    return judge_all(_cases(name, way, dtype, dynamic), limit, backend, dynamic=dynamic)


def _cases(name: str, way: str, dtype: torch.dtype, dynamic: bool) -> Iterator[Case]:
    op = _functions()[name]
    torch.manual_seed(seed_of(op, dtype))
    with quiet():
        given = op.sample_inputs("cpu", dtype, requires_grad=way != "forward")
    for number, sample in enumerate(given):
        values = (sample.input, tuple(sample.args), dict(sample.kwargs))
        case = case_of(op, values, way == "backward", dynamic=dynamic)
        text = partial(
            repro.described_program,
            f"{name}, sample {number}, {short(dtype)}, {way}",
            __name__,
            name=name,
            number=number,
            way=way,
            dtype=short(dtype),
            dynamic=dynamic,
        )
        yield (
            Case(partial(_twice, op, values), text)
            if way == "twice"
            else replace(case, program=text)
        )


def _twice(op: OpInfo, values: Any, wrap: Wrap, *, exact: bool) -> tuple[Any, Any]:
    """Run a function, its gradients, and the gradients of these."""
    first, args, kwargs = inputs = tree_map(raised, values) if exact else copy(values)
    leaves = [t for t in tree_leaves(inputs) if isinstance(t, torch.Tensor) and t.requires_grad]
    with quiet():
        outputs = wrap(op.op)(first, *args, **kwargs)
        once = gradients(outputs, leaves, create_graph=True)
        squares = [t.square() for t in once if t is not None and t.requires_grad]
        found = (outputs, once, gradients(squares, leaves) if squares else ())
    return (found, layouts(found)), inputs


def again(name: str, number: int, way: str, dtype: str, dynamic: bool) -> int:
    """Run one sample of a function once more; print what came of it, return 1 if it is bad."""
    found = _run(name, way, getattr(torch, dtype), number + 1, dynamic, "fusec")
    return shown(found[-1:])


__all__ = ["again", "asked_units", "names"]
