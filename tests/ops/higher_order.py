"""torch's database of higher-order operators: cond, while_loop, scan, map, flex_attention ..."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch
from torch.testing._internal.hop_db import hop_db
from torch.testing._internal.opinfo.core import OpInfo

from ops.databases import Asked, Unit, short
from ops.judge import Sample, judge_all
from ops.unit import FORWARD, case_of, seed_of
from support.opinfo import name_of, quiet

BACKWARD = (torch.float32, torch.float64)


def names() -> list[str]:
    """Return the names of the higher-order operators."""
    return [name_of(op) for op in hop_db]


def asked_units(name: str, asked: Asked) -> Iterator[Unit]:
    """Yield what there is to run of a higher-order operator."""
    op = next(op for op in hop_db if name_of(op) == name)
    # Some say that they have no dtype on a CPU, where they do run: eager decides.
    supported = op.supported_dtypes("cpu") or {torch.float32}
    for direction, dtypes in (("forward", FORWARD), ("backward", BACKWARD)):
        for dtype in dtypes if direction in asked.directions else ():
            if dtype in supported and short(dtype) in asked.dtypes:
                run = partial(_run, op, direction, dtype, asked.samples, asked.dynamic)
                yield Unit(short(dtype), direction, run)


def _run(
    op: OpInfo, direction: str, dtype: torch.dtype, limit: int, dynamic: bool, backend: str
) -> list[Sample]:
    torch.manual_seed(seed_of(op, dtype))
    backward = direction == "backward"
    with quiet():
        given = op.sample_inputs("cpu", dtype, requires_grad=backward)
        values = ((each.input, tuple(each.args), dict(each.kwargs)) for each in given)
        cases = (case_of(op, each, backward, dynamic=dynamic) for each in values)
        untold = (replace(case, program=None) for case in cases)
        return judge_all(untold, limit, backend, dynamic=dynamic)


__all__ = ["asked_units", "names"]
