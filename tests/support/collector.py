"""The garbage collector, for tests that ask for it often."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def looking_at_what_is_new() -> Iterator[None]:
    """Have the collector look at nothing that was there before, which takes seconds each time.

    For a file of tests, not for all: the fewer it counts, the more often it looks by itself.
    """
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


__all__ = ["looking_at_what_is_new"]
