"""What eager refuses must be refused: torch's error inputs, and dtypes that have no kernel."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch.testing._internal.opinfo.core import OpInfo
from torch.utils._pytree import tree_leaves, tree_map

from ops.databases import Asked, Unit, short
from ops.judge import Sample, must_raise
from ops.unit import FORWARD, case_of, find, names, seed_of
from support.opinfo import quiet

# From which of an operator's dtypes samples of one that it refuses are made.
_SOURCES = (torch.float32, torch.float64, torch.int64, torch.bool, torch.complex64)


def asked_units(name: str, asked: Asked) -> Iterator[Unit]:
    """Yield an operator's error inputs, and its first samples in each dtype that it refuses."""
    op = find(name)
    if op.error_inputs_func is not None:
        yield Unit("-", "errors", partial(_error_inputs, op, asked.dynamic))
    supported = op.supported_dtypes("cpu")
    source = next((dtype for dtype in _SOURCES if dtype in supported), None)
    for dtype in FORWARD:
        if source is not None and dtype not in supported and short(dtype) in asked.dtypes:
            run = partial(_refused, op, source, dtype, asked.samples, asked.dynamic)
            yield Unit(short(dtype), "errors", run)


def _error_inputs(op: OpInfo, dynamic: bool, backend: str) -> list[Sample]:
    found = []
    torch.manual_seed(seed_of(op, torch.float32))
    with quiet():
        for error in op.error_inputs("cpu"):
            sample = error.sample_input
            result = _judged(op, sample, backend, dynamic)
            if result is not None:
                found.append(result)
    return found


def _refused(
    op: OpInfo,
    source: torch.dtype,
    dtype: torch.dtype,
    limit: int,
    dynamic: bool,
    backend: str,
) -> list[Sample]:
    found = []
    torch.manual_seed(seed_of(op, source))

    def converted(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.dtype == source:
            return value.detach().to(dtype)
        return dtype if isinstance(value, torch.dtype) and value == source else value

    with quiet():
        for sample, _ in zip(op.sample_inputs("cpu", source), range(limit), strict=False):
            given = (sample.input, tuple(sample.args), dict(sample.kwargs))
            first, args, kwargs = tree_map(converted, given)
            changed = replace_sample(sample, first, args, kwargs)
            result = _judged(op, changed, backend, dynamic)
            if result is not None:
                found.append(replace(result, variant=f"as {short(dtype)}"))
    return found


def replace_sample(sample: Any, first: Any, args: Any, kwargs: Any) -> Any:
    """Return a sample like another, of other values."""
    return type(sample)(first, args=args, kwargs=kwargs)


def _judged(op: OpInfo, sample: Any, backend: str, dynamic: bool) -> Sample | None:
    values = (sample.input, tuple(sample.args), dict(sample.kwargs))
    if any(isinstance(v, torch.Tensor) and v.device.type != "cpu" for v in tree_leaves(values)):
        return None  # of a device that may not be there
    return must_raise(case_of(op, values, False, dynamic=dynamic), backend, dynamic=dynamic)


__all__ = ["asked_units", "names"]
