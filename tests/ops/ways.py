"""A name's cases of one way (forward, backward, ``jvp`` ...): as a unit, and once more by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch.utils._pytree import tree_map

from ops.databases import Asked, Unit, short
from ops.judge import Case, Sample, Wrap, judge_all, shown
from ops.layouts import layouts
from ops.unit import copy, raised, results
from support import repro
from support.opinfo import quiet

# A name, a way, a type and whether sizes are symbolic -> what there is to run.
Cases = Callable[[str, str, torch.dtype, bool], Iterable[Case]]


def unit_of(cases: Cases, name: str, way: str, dtype: torch.dtype, asked: Asked) -> Unit:
    """Return the unit that runs the first cases of a name in one way and type."""
    return Unit(
        short(dtype), way, partial(_run, cases, name, way, dtype, asked.samples, asked.dynamic)
    )


def run_again(cases: Cases, name: str, way: str, dtype: str, dynamic: bool, number: int = 0) -> int:
    """Run one case once more; print what came of it, return 1 if it is bad."""
    found = _run(cases, name, way, getattr(torch, dtype), number + 1, dynamic, "fusec")
    return shown(found[-1:])


def written(
    module: str, name: str, way: str, dtype: torch.dtype, dynamic: bool, number: int | None = None
) -> Callable[[], str]:
    """Return what writes the program of a case.

    Args:
        module: Which has ``again``, that runs the case once more.
        name: As of the case's unit; so are the way, the type and the sizes.
        way: Forward, backward ...
        dtype: Of its inputs.
        dynamic: Whether every size is symbolic.
        number: Which of the unit's cases it is; None if it has but one.
    """
    given = {"name": name, "way": way, "dtype": short(dtype), "dynamic": dynamic}
    given |= {} if number is None else {"number": number}
    place = "" if number is None else f", sample {number}"
    return partial(
        repro.described_program, f"{name}{place}, {short(dtype)}, {way}", module, **given
    )


def case_of_call(
    call: Callable[..., Any], values: Any, backward: bool, program: Callable[[], str]
) -> Case:
    """Return a call as a case: its results, with gradients or not, and how these lie.

    Args:
        call: What is called.
        values: With what: the first argument, the others, those by name.
        backward: Whether the gradients of the inputs are results too.
        program: As of a case.
    """

    def run(wrap: Wrap, *, exact: bool) -> tuple[Any, Any]:
        inputs = tree_map(raised, values) if exact else copy(values)
        with quiet():
            found = results(wrap(call), inputs, backward)
        return (found, layouts(found)), inputs

    return Case(run, program)


def _run(
    cases: Cases,
    name: str,
    way: str,
    dtype: torch.dtype,
    limit: int,
    dynamic: bool,
    backend: str,
) -> list[Sample]:
    return judge_all(cases(name, way, dtype, dynamic), limit, backend, dynamic=dynamic)


__all__ = ["Cases", "case_of_call", "run_again", "unit_of", "written"]
