"""torch's module database: modules of torch.nn, forward and backward, training and not."""

from __future__ import annotations

import copy as copying
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch.testing._internal.common_modules import ModuleInfo, module_db
from torch.utils._pytree import tree_leaves, tree_map

from ops.databases import Asked, Unit, short
from ops.judge import Case, Sample, Wrap, judge_all, shown
from ops.layouts import layouts
from ops.unit import copy, gradients, raised
from support import repro
from support.opinfo import quiet

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
# Training and evaluation are units of their own, each with and without gradients.
MODES = {"forward": ("eval", "train"), "backward": ("eval backward", "train backward")}


def names() -> list[str]:
    """Return the names of the database's modules."""
    return list(dict.fromkeys(info.name for info in module_db))


def asked_units(name: str, asked: Asked) -> Iterator[Unit]:
    """Yield what there is to run of a module."""
    infos = [info for info in module_db if info.name == name]
    for direction, modes in MODES.items():
        if direction not in asked.directions:
            continue
        for mode in modes:
            for dtype in DTYPES:
                if short(dtype) in asked.dtypes:
                    run = partial(_run, infos, mode, dtype, asked.samples, asked.dynamic)
                    yield Unit(short(dtype), mode, run)


def _run(
    infos: list[ModuleInfo], mode: str, dtype: torch.dtype, limit: int, dynamic: bool, backend: str
) -> list[Sample]:
    given = (_cases(info, mode, dtype, dynamic) for info in infos)
    return [s for cases in given for s in judge_all(cases, limit, backend, dynamic=dynamic)]


def _cases(info: ModuleInfo, mode: str, dtype: torch.dtype, dynamic: bool) -> Iterator[Case]:
    training, backward = mode.startswith("train"), mode.endswith("backward")
    seed = zlib.crc32(f"{info.name} {short(dtype)}".encode())
    torch.manual_seed(seed)
    with quiet():
        given = info.module_inputs_func(
            info, device="cpu", dtype=dtype, requires_grad=backward, training=training
        )
    for number, sample in enumerate(given):
        if sample.forward_input is None:
            continue
        build, call = sample.constructor_input, sample.forward_input
        torch.manual_seed(seed)
        with quiet():
            module = info.module_cls(*build.args, **build.kwargs).to(dtype).train(training)
        values = (tuple(call.args), dict(call.kwargs))
        given_again = {"name": info.name, "number": number, "dtype": short(dtype)}
        text = partial(
            repro.described_program,
            f"{info.name}, sample {number}, {short(dtype)}, {mode}",
            __name__,
            **given_again,
            mode=mode,
            dynamic=dynamic,
        )
        yield case_of_module(module, values, backward, text)


def again(name: str, number: int, dtype: str, mode: str, dynamic: bool) -> int:
    """Run one sample of a module once more; print what came of it, return 1 if it is bad."""
    infos = [info for info in module_db if info.name == name]
    found = _run(infos, mode, getattr(torch, dtype), number + 1, dynamic, "fusec")
    return shown(found[-1:])


def case_of_module(
    module: torch.nn.Module, values: Any, backward: bool, program: Callable[[], str]
) -> Case:
    """Return a module's call on some inputs as a case: its results, gradients and buffers.

    Args:
        module: Copied for each run.
        values: What it is called with: positional arguments, and those by name.
        backward: Whether gradients of inputs and parameters are results too.
        program: As of a case.
    """

    def run(wrap: Wrap, *, exact: bool) -> tuple[Any, Any]:
        own = copying.deepcopy(module)
        args, kwargs = tree_map(raised, values) if exact else copy(values)
        own = own.double() if exact else own
        state = (args, kwargs, dict(own.named_buffers()))
        with quiet(), torch.set_grad_enabled(backward):
            outputs = wrap(own)(*args, **kwargs)
            if not backward:
                return (outputs, layouts(outputs)), state
            leaves = [*own.parameters(), *tree_leaves((args, kwargs))]
            leaves = [t for t in leaves if isinstance(t, torch.Tensor) and t.requires_grad]
            found = (outputs, gradients(outputs, leaves))
        return (found, layouts(found)), state

    return Case(run, program)


__all__ = ["DTYPES", "MODES", "again", "asked_units", "case_of_module", "names"]
