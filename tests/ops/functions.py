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
from ops.judge import Case, Wrap
from ops.layouts import layouts
from ops.unit import FORWARD, case_of, copy, gradients, raised, seed_of
from ops.ways import run_again, unit_of, written
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
                    yield unit_of(_cases, name, way, dtype, asked)


def _cases(name: str, way: str, dtype: torch.dtype, dynamic: bool) -> Iterator[Case]:
    op = _functions()[name]
    torch.manual_seed(seed_of(op, dtype))
    with quiet():
        given = op.sample_inputs("cpu", dtype, requires_grad=way != "forward")
    for number, sample in enumerate(given):
        values = (sample.input, tuple(sample.args), dict(sample.kwargs))
        case = case_of(op, values, way == "backward", dynamic=dynamic)
        program = written(__name__, name, way, dtype, dynamic, number)
        yield (
            Case(partial(_twice, op, values), program)
            if way == "twice"
            else replace(case, program=program)
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


again = partial(run_again, _cases)

__all__ = ["again", "asked_units", "names"]
