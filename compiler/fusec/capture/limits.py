"""TorchDynamo's limits, lifted where somebody asks for each compilation: packages, precompiling.

TorchDynamo compiles a function eight times and runs every further kind of call in eager, from then
on whatever the limit is.  That keeps code that compiles again and again from doing so for ever;
where a list says what to compile, it would lose the end of the list.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import torch
from torch._dynamo.types import FrameAction, FrameExecStrategy  # type: ignore[attr-defined]
from torch.fx.experimental import _config as symbolic_config

from fusec.capture.shortcut import find_frame

_MOST_COMPILATIONS = 1024
# Settings are a thread's own from torch 2.13 on. Before, whoever came second would put back for
# good what the first one had changed for a moment: so one changes them at a time.
_one_at_a_time = threading.RLock()


@contextlib.contextmanager
def as_often_as_asked(optimized: Any, *, apart: bool = False) -> Iterator[None]:
    """Let a function be compiled for every kind of call meanwhile, though it was given up before.

    Args:
        optimized: What ``torch.compile`` returned.
        apart: Whether each kind of call is compiled for itself: no size becomes symbolic because it
            changed, and sizes that are alike in an example alone stay apart.
    """
    changes: dict[str, Any] = {
        "recompile_limit": _MOST_COMPILATIONS,
        "accumulated_recompile_limit": 4 * _MOST_COMPILATIONS,
    }
    more: Any = contextlib.nullcontext()
    if apart:
        changes["automatic_dynamic_shapes"] = False
        more = symbolic_config.patch(use_duck_shape=False)  # type: ignore[attr-defined]
    with _one_at_a_time, torch._dynamo.config.patch(changes), more:
        frame = find_frame(optimized)
        if frame is not None:
            compile_again(frame[0].__code__)
        yield


def compile_again(code: Any) -> None:
    """Have TorchDynamo compile code again that it gave up; what it compiled stays."""
    again = FrameExecStrategy(FrameAction.DEFAULT, FrameAction.DEFAULT)
    torch._C._dynamo.eval_frame.set_code_exec_strategy(code, again)


__all__ = ["as_often_as_asked", "compile_again"]
