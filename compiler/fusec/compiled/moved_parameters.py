"""Tensors that TorchDynamo does not look at again, and that lie otherwise than they did.

An optimizer's parameters and states are no inputs to TorchDynamo, which guards only that they are
the same objects.  ``p.data = other``, with other strides, changes one that stays the same object.
"""

from __future__ import annotations

import contextlib
import sys
from types import FrameType
from typing import Any

import torch
from torch import fx


def holds_tensors(module: fx.GraphModule) -> bool:
    """Whether a captured graph has tensors of its own, beside its inputs."""
    return any(True for _ in module.graph.find_nodes(op="get_attr"))


def capture_again() -> None:
    """Have TorchDynamo drop the code that is running, and capture it anew in the next call."""
    frame: FrameType | None = sys._getframe()
    with contextlib.suppress(AttributeError, ImportError, TypeError):  # another release of torch
        from torch._dynamo.convert_frame import orig_code_map  # type: ignore[attr-defined]
        from torch._dynamo.guards import DeletedGuardManagerWrapper

        while frame is not None:
            original = orig_code_map.get(frame.f_code)
            if original is not None:
                deleted = DeletedGuardManagerWrapper("a parameter lies otherwise than it did")
                for entry in torch._dynamo.eval_frame._debug_get_cache_entry_list(original):
                    if entry.code is frame.f_code:
                        guards: Any = entry.guard_manager
                        guards.extra_state.invalidate(guards.cache_entry, deleted)
                return
            frame = frame.f_back


__all__ = ["capture_again", "holds_tensors"]
