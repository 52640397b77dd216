"""Sizes near the end of the memory that a process may have."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psutil
import torch

import fusec
from faults.user import Seen, activation, inputs, normal

# So much more than it has may the process take: by steps of this around what a call needs.
_STEP = 32 << 20
_STEPS = 14
# 64 MB a tensor.
_ROWS, _COLUMNS = 4096, 4096


def two(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Two results, of which the second may not find room."""
    return torch.tanh(x * w + 1), (x - w).sigmoid()


@contextmanager
def _no_more_than(extra: int) -> Iterator[None]:
    """Let this process take no more than so many further bytes of addresses."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    limit = psutil.Process().memory_info().vms + extra
    resource.setrlimit(resource.RLIMIT_AS, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def _attempt(call: Callable[..., object], given: tuple[torch.Tensor, ...], extra: int) -> str:
    """Return what a call raises with so much room, by its class; nothing where it comes back."""
    with _no_more_than(extra):
        try:
            call(*given)
        except (RuntimeError, MemoryError) as error:
            return type(error).__name__
    return ""


def _tensors(found: torch.Tensor | tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    return found if isinstance(found, tuple) else (found,)


def memory_end(seen: Seen) -> None:
    """Calls that find no room raise as eager's do, and the next one is right."""
    x = torch.ones(_ROWS, _COLUMNS)
    w = torch.ones(_COLUMNS)
    raised = 0
    for function in (activation, normal, two):
        compiled = fusec.compile(function)
        compiled(x, w)  # what is made once is made
        for step in range(_STEPS):
            found = _attempt(compiled, (x, w), step * _STEP)
            raised += bool(found)
            seen.must(found in ("", "RuntimeError", "MemoryError"), f"raised {found}")
        for given in ((x, w), inputs()):
            pairs = zip(_tensors(compiled(*given)), _tensors(function(*given)), strict=True)
            for mine, wanted in pairs:
                seen.same(mine, wanted)
        seen.must(_attempt(compiled, (x, w), 1 << 32) == "", "raised with room enough")
        seen.said += compiled.fallbacks
    seen.must(raised > 0, "nothing was ever too large")
    seen.figures.append(f"{raised} of {3 * _STEPS} calls found no room")


__all__ = ["memory_end"]
