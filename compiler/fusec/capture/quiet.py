"""What TorchDynamo does beside compiling is left out where fusec makes it compile.

After each compilation it empties the processor's cache and times one evaluation of its guards, for
a log and a metric: a tenth of the time that a small function takes to compile.  And where an
optimizer marks its step for the profiler, it warns that it ignores the mark: in a notebook a red
box, about code that nobody wrote, below every training cell.

Both are hooked once a process, and look at what the thread is doing: most calls compile nothing,
and should not pay.
"""

from __future__ import annotations

import functools
import logging
import threading
from typing import Any

import torch

_TIMES = "profile_guard_manager"
_LOGGER = "torch._dynamo.variables.ctx_manager"
_REMARK = "Profiler record function"
_thread = threading.local()


class Quiet:
    """Within it, on this thread, guards are not timed and marks for the profiler not remarked on.

    Guards are timed all the same where the log of guards is on.
    """

    __slots__ = ("_outer",)

    def __enter__(self) -> None:
        """Begin."""
        self._outer = _is_quiet()
        _thread.quiet = True

    def __exit__(self, *_: object) -> None:
        """End, unless there is another one round it."""
        _thread.quiet = self._outer


def _is_quiet() -> bool:
    return getattr(_thread, "quiet", False)


@functools.cache
def install() -> None:
    """Hook into TorchDynamo, once; a release that has no such parts is left alone."""
    logging.getLogger(_LOGGER).addFilter(_says_something)
    guards: Any = torch._dynamo.guards
    original, log = getattr(guards, _TIMES, None), getattr(guards, "guards_log", None)
    if original is None or log is None:
        return

    @functools.wraps(original)
    def timed(*args: Any, **kwargs: Any) -> Any:
        if _is_quiet() and not log.isEnabledFor(logging.DEBUG):
            return 0.0
        return original(*args, **kwargs)

    setattr(guards, _TIMES, timed)


def _says_something(record: logging.LogRecord) -> bool:
    return not (_is_quiet() and str(record.msg).startswith(_REMARK))


__all__ = ["Quiet", "install"]
