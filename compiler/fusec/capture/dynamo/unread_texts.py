"""Texts of graphs that AOTAutograd writes for a log, which mostly nobody reads.

Of each graph that gradients flow through it writes three (joint, forward, backward), with every
tensor's shape and strides, before it asks whether ``TORCH_LOGS`` or ``TORCH_TRACE`` wants them: a
fiftieth of the time that a training step's first call takes. Here it is asked first.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
from collections.abc import Iterator
from typing import Any

# What writes texts, and what each returns that has none.
_WRITERS: dict[str, object] = {"_log_joint_graph": None, "_log_fw_bw_graphs": (None, None)}
_LOGS = ("aot_joint_log", "aot_graphs_log")
_thread = threading.local()


@contextlib.contextmanager
def unread_texts() -> Iterator[None]:
    """Have AOTAutograd write no texts on this thread, within ``with``, that nobody reads."""
    install()
    outer = getattr(_thread, "within", False)
    _thread.within = True
    try:
        yield
    finally:
        _thread.within = outer


@functools.cache
def install() -> None:
    """Hook into AOTAutograd, once; a release that has no such parts is left alone."""
    try:
        from torch._functorch._aot_autograd import graph_compile
        from torch._logging._internal import trace_log
    except ImportError:
        return
    logs: list[Any] = [getattr(graph_compile, name, None) for name in _LOGS]
    if None in logs:
        return
    for name, nothing in _WRITERS.items():
        original: Any = getattr(graph_compile, name, None)
        if original is not None:
            setattr(graph_compile, name, _asking(original, nothing, logs, trace_log))


def _asking(original: Any, nothing: object, logs: list[Any], trace: Any) -> Any:
    @functools.wraps(original)
    def write(*args: Any, **kwargs: Any) -> Any:
        kept = (getattr(each, "cache_info", None) for each in (*args, *kwargs.values()))
        if (
            getattr(_thread, "within", False)
            and not trace.handlers
            and not any(log.isEnabledFor(logging.INFO) for log in logs)
            and all(each is None for each in kept)  # its own cache keeps them
        ):
            return nothing
        return original(*args, **kwargs)

    return write


__all__ = ["install", "unread_texts"]
