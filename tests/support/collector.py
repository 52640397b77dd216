"""The garbage collector, for tests that ask for it often."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def looking_at_what_is_new() -> Iterator[None]:
    """Have the collector look at nothing that was there before, which takes seconds each time.

    What was imported before the tests (``conftest.py``) stays frozen afterwards.
    """
    frozen = gc.get_freeze_count() > 0
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
        if frozen:
            gc.freeze()


__all__ = ["looking_at_what_is_new"]
