"""Python's garbage collector rests while something is compiled, and while the compiler is imported.

Both make objects by the million and keep most: the collector looks at all of them, and at all that
the process has imported before, several times, and finds next to nothing.  For GPT-2 that is a
seventh of the time to compile, of the imports it is a quarter.  Afterwards the objects count as
old, at once: what has become garbage meanwhile is found when the collector next looks at
everything.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

# Python 3.12 begins with some hundred objects frozen; whoever freezes has as many thousands.
_OWN = 1000
# To count what is frozen, Python walks through all of it: for a user who has frozen what torch
# imports, 27 ms.  It is asked once in so many times.
_EVERY = 64


class Rest:
    """Within it, on any thread, the collector rests, if it was on; may be nested."""

    _lock = threading.Lock()
    _depth = 0
    _was_on = False
    _unasked = 0  # how many more times what the user has frozen is taken to be so still

    def __enter__(self) -> None:
        """Begin."""
        with Rest._lock:
            if not Rest._depth:
                Rest._was_on = gc.isenabled()
                gc.disable()
            Rest._depth += 1

    def __exit__(self, *_: object) -> None:
        """End; the last one to end lets the collector work again."""
        with Rest._lock:
            Rest._depth -= 1
            if not Rest._was_on:
                return
            # Also where another one goes on: TorchDynamo looks at all young objects before it ends.
            if Rest._unasked:
                Rest._unasked -= 1
            elif gc.get_freeze_count() < _OWN:
                gc.freeze()  # this and the next move lists, and look at no object
                gc.unfreeze()
            else:
                Rest._unasked = _EVERY  # they are the user's, and stay frozen
            if not Rest._depth:
                gc.enable()


@contextmanager
def collector_off() -> Iterator[None]:
    """Keep the collector away within the block: what it does takes time, and may forbid itself."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


__all__ = ["Rest", "collector_off"]
