"""What a kernel has to leave as it was: the state of its process, before and after.

Most of what could change it is refused before it is loaded (``binary``); this also sees what a
trusted kernel does, and what no file shows, such as another mode of the processor.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from fusec.systems import this_system

_TINY = 1e-40
_ELEMENTS = 1 << 16


def snapshot() -> Mapping[str, Any]:
    """Return the state of this process, by what people call each part of it."""
    from fusec.toolchain.compiler import openmp_library

    return this_system().state(openmp_library())


def changes(before: Mapping[str, Any], *, threads: int, tasks: int) -> str:
    """Return what has changed since a snapshot, in words; empty where nothing has.

    Args:
        before: The snapshot.
        threads: The most threads that the kernel was asked to use; they stay, waiting.
        tasks: How many threads there were.
    """
    after = snapshot()
    names = [name for name, value in before.items() if value != after[name]]
    if names:
        return f"changes {names[0]}"
    extra = this_system().task_count() - tasks - max(0, threads - 1)
    if extra > 0:
        return f"leaves {extra} thread{'s' * (extra > 1)} running"
    return _arithmetic(threads)


def _arithmetic(threads: int) -> str:
    """Return what is wrong with the arithmetic of OpenMP's threads; they are torch's, too."""
    torch.set_num_threads(threads)
    tiny = torch.full((_ELEMENTS * threads,), _TINY)
    if not bool((tiny * 0.5 != 0).all()):
        return "switches denormal numbers off for the whole process"
    third = torch.ones(_ELEMENTS * threads) / 3.0
    if not bool((third == torch.tensor(1.0 / 3.0)).all()):
        return "changes how the processor rounds"
    return ""


__all__ = ["changes", "snapshot"]
