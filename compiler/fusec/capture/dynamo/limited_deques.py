"""A deque with a greatest length that was there before: TorchDynamo takes it for one without.

``frames.append(x); torch.stack(list(frames))`` with ``deque(maxlen=3)`` had four frames, whichever
backend is asked.  It knows of the length where a captured function makes the deque itself, and
refuses to write such a one back, for it may be that elements were dropped.  They were: what is
written back are the elements that are left, after all others have gone.
"""

from __future__ import annotations

import collections
import functools
from collections.abc import Callable
from typing import Any

from torch._dynamo.guards import GuardBuilder, install_guard
from torch._dynamo.side_effects import SideEffects
from torch._dynamo.source import AttrSource
from torch._dynamo.variables import ConstantVariable
from torch._dynamo.variables.builder import VariableBuilder
from torch._dynamo.variables.lists import DequeVariable

_READS, _WRITES = "wrap_listlike", "codegen_update_mutated"


@functools.cache
def install() -> None:
    """Hook into TorchDynamo, once: where it takes a deque in, and where it writes one back."""
    reads: Callable[..., Any] | None = getattr(VariableBuilder, _READS, None)
    writes: Callable[..., Any] | None = getattr(SideEffects, _WRITES, None)
    if reads is None or writes is None:
        return  # another release of torch

    @functools.wraps(reads)
    def read(self: Any, value: Any) -> Any:
        result = reads(self, value)
        if type(value) is collections.deque and isinstance(result, DequeVariable):
            length = AttrSource(self.get_source(), "maxlen")
            install_guard(length.make_guard(GuardBuilder.CONSTANT_MATCH))
            result.maxlen = ConstantVariable.create(value.maxlen)
        return result

    @functools.wraps(writes)
    def write(self: Any, *args: Any, **kwargs: Any) -> Any:
        limits = {each: each.maxlen for each in self.id_to_variable.values() if _is_a_deque(each)}
        for each in limits:
            each.maxlen = ConstantVariable.create(None)
        try:
            return writes(self, *args, **kwargs)
        finally:
            for each, limit in limits.items():
                each.maxlen = limit

    setattr(VariableBuilder, _READS, read)
    setattr(SideEffects, _WRITES, write)


def _is_a_deque(variable: Any) -> bool:
    return isinstance(variable, DequeVariable) and variable.source is not None


__all__ = ["install"]
