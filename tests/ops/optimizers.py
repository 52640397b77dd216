"""torch's optimizer database: compiled steps, several of them, beside eager's."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch.testing._internal.common_optimizers import OptimizerInfo, optim_db

from ops.databases import Asked, Unit, short
from ops.judge import Case, Sample, Wrap, judge, shown
from support import repro
from support.opinfo import quiet

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
SHAPES = ((4, 5), (7, 3), (16,), ())
STEPS = 3
# What a call of the optimizer's constructor is given besides what the database says.
_WAYS: dict[str, dict[str, Any]] = {"one by one": {"foreach": False}, "foreach": {"foreach": True}}


def names() -> list[str]:
    """Return the names of the database's optimizers."""
    return [info.optim_cls.__name__ for info in optim_db]


def asked_units(name: str, asked: Asked) -> Iterator[Unit]:
    """Yield what there is to run of an optimizer: all of its inputs, each way that it has."""
    info = next(info for info in optim_db if info.optim_cls.__name__ == name)
    if "backward" not in asked.directions and "forward" not in asked.directions:
        return
    ways = {"steps": {}} | {w: o for w, o in _WAYS.items() if "foreach" in info.supported_impls}
    for way, options in ways.items():
        for dtype in DTYPES:
            if short(dtype) in asked.dtypes:
                yield Unit(short(dtype), way, partial(_run, info, options, dtype, asked.dynamic))


def _run(
    info: OptimizerInfo, options: dict[str, Any], dtype: torch.dtype, dynamic: bool, backend: str
) -> list[Sample]:
    found = []
    with quiet():
        count = len(info.optim_inputs_func("cpu"))
        for number in range(count):
            result = judge(_case(info, number, options, dtype, dynamic), backend, dynamic=dynamic)
            if result is not None:
                found.append(result)
    return found


def _case(
    info: OptimizerInfo, number: int, options: dict[str, Any], dtype: torch.dtype, dynamic: bool
) -> Case:
    name = info.optim_cls.__name__

    def run(wrap: Wrap, *, exact: bool) -> tuple[Any, Any]:
        params, optimizer = made(info, number, options, dtype, torch.float64 if exact else dtype)
        generator = torch.Generator().manual_seed(11)
        closure = (lambda: sum((p * p).sum() for p in params)) if _closure(info) else None

        def step() -> None:
            optimizer.step(closure) if closure else optimizer.step()

        compiled = wrap(step)
        for _ in range(STEPS):
            for param in params:
                grad = torch.randn(param.shape, generator=generator, dtype=torch.float64).to(dtype)
                grad = grad.to(param.dtype)
                param.grad = grad.to_sparse() if info.only_supports_sparse_grads else grad
            compiled()
        state = [value for param in params for value in optimizer.state[param].values()]
        return [param.detach() for param in params], state

    text = partial(
        repro.described_program,
        f"{name}, input {number}, {short(dtype)}",
        __name__,
        name=name,
        number=number,
        options=options,
        dtype=short(dtype),
        dynamic=dynamic,
    )
    # Where it is compiled, torch.optim corrects means by a float32 tensor, not by Python's numbers.
    return Case(run, text, asks=True)


def again(name: str, number: int, options: dict[str, Any], dtype: str, dynamic: bool) -> int:
    """Run one input of an optimizer once more; print what came of it, return 1 if it is bad."""
    info = next(info for info in optim_db if info.optim_cls.__name__ == name)
    case = _case(info, number, options, getattr(torch, dtype), dynamic)
    return shown([judge(case, "fusec", dynamic=dynamic)])


def _closure(info: OptimizerInfo) -> bool:
    return info.step_requires_closure


def made(
    info: OptimizerInfo,
    number: int,
    options: dict[str, Any],
    dtype: torch.dtype,
    computed: torch.dtype,
) -> tuple[list[torch.Tensor], torch.optim.Optimizer]:
    """Return parameters of ``dtype``, held in ``computed``, and an optimizer of them."""
    given = info.optim_inputs_func("cpu")[number].kwargs
    generator = torch.Generator().manual_seed(5)
    shapes = SHAPES[:2] if info.optim_cls.__name__ == "Muon" else SHAPES
    values = [torch.randn(s, generator=generator, dtype=torch.float64).to(dtype) for s in shapes]
    params = [torch.nn.Parameter(v.to(computed)) for v in values]
    return params, info.optim_cls(params, **{**given, **options})


__all__ = ["asked_units", "made", "names"]
