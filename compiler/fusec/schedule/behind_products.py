"""What a product has woken: kernels behind one share their rows among its threads sooner."""

from __future__ import annotations

from dataclasses import replace

import torch

from fusec.devices import CPU
from fusec.ir.program import Compute, Extern, Program, Step, TensorRef
from fusec.ir.shapes import product
from fusec.schedule.choices import grain_of_awake_threads, wakes_threads

aten = torch.ops.aten
# Where among its arguments a product has its left matrix.
_LEFT = {
    aten.mm.default: 0,
    aten.bmm.default: 0,
    aten.addmm.default: 1,
    aten.baddbmm.default: 1,
}


def share_with_awake_threads(program: Program) -> Program:
    """Return a program with a smaller ``GRAIN`` for kernels that come right behind a product."""
    result: list[Step] = []
    before: Step | None = None
    for step in program.steps:
        if isinstance(step, Compute) and _is_shared_product(before, program):
            grain = grain_of_awake_threads(step.body)
            if grain is not None:
                step = replace(step, settings=(*step.settings, ("GRAIN", grain)))
        result.append(step)
        before = step
    return replace(program, steps=tuple(result))


def _is_shared_product(step: Step | None, program: Program) -> bool:
    """Whether a step is a product on the CPU that the library shares among threads."""
    if not isinstance(step, Extern) or step.target not in _LEFT:
        return False
    left, result = step.args[_LEFT[step.target]], program.buffers[step.outputs[0]]
    if not isinstance(left, TensorRef) or result.device.type != CPU:
        return False
    return wakes_threads(product((*result.shape, left.shape[-1])).constant)


__all__ = ["share_with_awake_threads"]
