"""What a kernel has to leave as it was: the state of its process, before and after.

Most of what could change it is refused before it is loaded (``binary``); this also sees what a
trusted kernel does, and what no file shows, such as another mode of the processor.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from fusec.systems import this_system

_TINY = 1e-40
_ELEMENTS = 1 << 16


def snapshot() -> Mapping[str, Any]:
    """Return the state of this process, by what people call each part of it."""
    from fusec.toolchain.compiler import openmp_library

    return this_system().state(openmp_library())


def of_torch() -> Mapping[str, Any]:
    """Return what Python can change of this process and of torch, in the same words."""
    generators = [torch.get_rng_state()]
    device = None
    if torch.cuda.is_initialized():
        device = torch.cuda.current_stream(), torch.cuda.current_device()
        generators.append(torch.cuda.get_rng_state())
    return {
        "the current folder": os.getcwd(),
        "the environment": dict(os.environ),
        "how signals are taken": [signal.getsignal(number) for number in signal.valid_signals()],
        "torch's random numbers": [each.numpy().tobytes() for each in generators],
        "whether gradients are recorded": torch.is_grad_enabled(),
        "torch's default type": torch.get_default_dtype(),
        "torch's number of threads": torch.get_num_threads(),
        "whether products use TF32": (
            torch.backends.cuda.matmul.allow_tf32,
            torch.backends.cudnn.allow_tf32,
            torch.get_float32_matmul_precision(),
        ),
        "whether torch is deterministic": torch.are_deterministic_algorithms_enabled(),
        "the current stream or device": device,
        "what is imported from where": list(sys.path),
    }


def changes_of_torch(before: Mapping[str, Any], threads: Sequence[threading.Thread]) -> str:
    """Return what has changed since ``of_torch``, in words; empty where nothing has.

    Args:
        before: What it returned.
        threads: Python's threads at that time.
    """
    after = of_torch()
    for name, value in before.items():
        if value != after[name]:
            return f"changes {name}"
    extra = len(set(threading.enumerate()) - set(threads))
    return f"leaves {extra} thread{'s' * (extra > 1)} running" if extra else ""


def changes(before: Mapping[str, Any], *, threads: int, tasks: int) -> str:
    """Return what has changed since a snapshot, in words; empty where nothing has.

    Args:
        before: The snapshot.
        threads: The most threads that the kernel was asked to use; they stay, waiting.
        tasks: How many threads there were.
    """
    extra = this_system().task_count() - tasks - max(0, threads - 1)
    if extra > 0:
        return f"leaves {extra} thread{'s' * (extra > 1)} running"
    after = snapshot()
    names = [name for name, value in before.items() if value != after[name]]
    if names:
        return f"changes {names[0]}"
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


__all__ = ["changes", "changes_of_torch", "of_torch", "snapshot"]
