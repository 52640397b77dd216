"""A test mode in which memory that nothing has written yet holds values that show.

With ``FUSEC_POISON=1``, whatever is allocated for kernels and for operators that write into memory
of ours is filled first: with NaN, the extremes of integers, True. What a plan of memory hands from
one buffer to the next is filled again in between, and arrays within kernels begin as the C++
compiler's own pattern. A result that was computed from memory that nothing wrote then differs from
eager's in every run, not in one of a thousand.

It is asked where programs are built, so that calls cost nothing where it is off. GPU programs run
step by step then, without plans.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily

from fusec.ir.body import Buffer
from fusec.ir.program import Step

_POISON = "FUSEC_POISON"
FLAG = "-ftrivial-auto-var-init=pattern"  # of g++ 12 and clang 8


def is_on() -> bool:
    """Whether memory is poisoned in what is built from now on."""
    return os.environ.get(_POISON, "") not in ("", "0")


def value_of(dtype: torch.dtype) -> complex | float | int | bool:
    """Return what memory of a type is filled with."""
    if dtype == torch.bool:
        return True
    if dtype.is_complex:
        return complex(float("nan"), float("nan"))
    if dtype.is_floating_point:
        return float("nan")
    limits = torch.iinfo(dtype)
    return limits.min if limits.min else limits.max


def fill(tensor: torch.Tensor) -> torch.Tensor:
    """Fill a tensor, gaps left out, without a note for autograd; return it."""
    tensor.detach().data.fill_(value_of(tensor.dtype))
    return tensor


def poisoned(allocate: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """Return an allocator whose memory is filled, where the mode is on; else itself."""
    if not is_on():
        return allocate

    def call(*args: Any, **kwargs: Any) -> torch.Tensor:
        return fill(allocate(*args, **kwargs))

    return call


def poison_scratch(
    call: Any,
    steps: Sequence[Step],
    buffers: Mapping[str, Buffer],
    places: Mapping[str, int],
    sizes: Mapping[str, int | None],
) -> None:
    """Have a native program fill each temporary before the first kernel that has it.

    Args:
        call: The native program; its kernels are ``steps``.
        steps: In order.
        buffers: By name.
        places: Offset in the scratch memory by name.
        sizes: Bytes by name.
    """
    if not is_on():
        return
    seen: set[str] = set()
    for number, step in enumerate(steps):
        for name in (*step.reads(), *step.writes()):
            if name in places and name not in seen:
                pattern = _pattern(buffers[name].dtype)
                call.poison(number, places[name], (sizes[name] or 0) // len(pattern), pattern)
            seen.add(name)


def _pattern(dtype: torch.dtype) -> bytes:
    with unset_fake_temporarily():  # programs are built while torch traces
        return fill(torch.empty(1, dtype=dtype)).view(torch.uint8).numpy().tobytes()


__all__ = ["FLAG", "fill", "is_on", "poison_scratch", "poisoned", "value_of"]
