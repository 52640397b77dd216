"""What a failed tracing leaves of ``torch.func``'s transforms is undone.

A graph of ``jvp`` enters forward mode and leaves it again.  Where AOTAutograd fails between, torch
stays in it: the graph, run in eager instead, and every later ``jvp`` of the process would fail.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch._C._functorch import (
    TransformType,
    _grad_decrement_nesting,
    _jvp_decrement_nesting,
    _vmap_decrement_nesting,
    get_interpreter_stack,
    pop_dynamic_layer_stack,
)
from torch.autograd import forward_ad

_LEAVE = {
    TransformType.Grad: _grad_decrement_nesting,
    TransformType.Jvp: _jvp_decrement_nesting,
    TransformType.Vmap: _vmap_decrement_nesting,
}


@contextlib.contextmanager
def transforms_left() -> Iterator[None]:
    """Leave the transforms that were entered within, where it ends by an exception."""
    depth, level = _depth(), forward_ad._current_level
    try:
        yield
    except BaseException:
        while _depth() > depth:
            innermost = (get_interpreter_stack() or [])[-1]
            _LEAVE.get(innermost.key(), pop_dynamic_layer_stack)()
        if level < 0:
            with contextlib.suppress(RuntimeError):  # it was not entered
                torch._C._exit_dual_level(level=0)
            forward_ad._current_level = level
        raise


def _depth() -> int:
    return len(get_interpreter_stack() or ())


__all__ = ["transforms_left"]
