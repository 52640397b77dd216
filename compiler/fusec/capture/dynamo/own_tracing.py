"""What FX traces while a graph is compiled, told apart from a user's own symbolic tracing.

TorchDynamo refuses compiled calls while FX traces. That is a flag of the process, so a call in
another thread would be refused for what this one compiles, but for ``torch.compiler.is_compiling``.
torch 2.13 holds that up itself while it compiles; before, nobody did.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import torch

_HELD_BY_TORCH = hasattr(torch.compiler, "_compile_session_context")
_lock = threading.Lock()
_holders = 0


@contextlib.contextmanager
def own_tracing() -> Iterator[None]:
    """Let calls in other threads through while a graph is compiled within ``with``."""
    if _HELD_BY_TORCH:
        yield
        return
    _hold(1)
    try:
        yield
    finally:
        _hold(-1)


def _hold(more: int) -> None:
    global _holders
    with _lock:
        _holders += more
        torch.compiler._is_compiling_flag = _holders > 0


__all__ = ["own_tracing"]
