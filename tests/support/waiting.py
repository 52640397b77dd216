"""Waiting for what another thread or process does, where it tells nobody."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

_PAUSE = 0.01


def happens(condition: Callable[[], object], seconds: float = 60.0) -> bool:
    """Look again and again until a condition holds; return whether it ever did."""
    deadline = time.monotonic() + seconds
    pause = threading.Event()  # never set
    while not condition():
        if time.monotonic() > deadline:
            return False
        pause.wait(_PAUSE)
    return True


def wait_for(condition: Callable[[], object], seconds: float = 60.0) -> None:
    """Wait until a condition holds.

    Raises:
        AssertionError: It did not in that time.
    """
    assert happens(condition, seconds), "waited in vain"
