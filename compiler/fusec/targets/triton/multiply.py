"""A tensor times a number that only the GPU knows; where that is one, nothing is read."""

# ruff: noqa: N803  # constants of kernels
# mypy: disable-error-code="no-untyped-def, untyped-decorator"

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from fusec.machine import current_machine
from fusec.targets.triton.toolchain.launch import Launcher, on_device_of

BLOCK, WARPS = 4096, 8
PROGRAMS = 8  # for each processor, which go through the tensor


@triton.jit
def multiply_unless_one(x_ptr, factor_ptr, count, BLOCK: tl.constexpr):
    """Multiply by a factor, if it is not one."""
    factor = tl.load(factor_ptr)
    if factor != 1.0:
        first = tl.program_id(0).to(tl.int64) * BLOCK
        for start in tl.range(first, count, tl.num_programs(0) * BLOCK):
            place = start + tl.arange(0, BLOCK)
            inside = place < count
            x = tl.load(x_ptr + place, inside)
            tl.store(x_ptr + place, x.to(tl.float32) * factor, inside)


_launcher = Launcher(multiply_unless_one)


def multiply_in_place(x: torch.Tensor, factor: torch.Tensor, *, launcher: Any = None) -> None:
    """Multiply a contiguous tensor by one float32.

    Args:
        x: Of a type whose products are those of float32, rounded.
        factor: One element.
        launcher: What starts the kernel, in tests.
    """
    count = x.numel()
    programs = min(triton.cdiv(count, BLOCK), PROGRAMS * current_machine().gpu.processors)
    if programs:
        kernel = launcher or _launcher
        with on_device_of(x):
            kernel[(programs,)](x, factor, count, BLOCK=BLOCK, num_warps=WARPS)


__all__ = ["multiply_in_place"]
