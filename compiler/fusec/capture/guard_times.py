"""TorchDynamo's measurement of how long its guards take is left out.

After each compilation it empties the processor's cache and times one evaluation, for a log and a
metric. That is a tenth of the time that a small function takes to compile.
"""

from __future__ import annotations

import logging
import threading
from typing import Any

import torch

_NAME = "profile_guard_manager"
_lock = threading.Lock()
_users = 0
_original: Any = None


class NoGuardTimes:
    """Within it nobody measures, unless the log of guards is on; other releases are left alone."""

    def __init__(self) -> None:
        self._entered = False

    def __enter__(self) -> None:
        global _users, _original
        guards: Any = torch._dynamo.guards
        log = getattr(guards, "guards_log", None)
        if not hasattr(guards, _NAME) or log is None or log.isEnabledFor(logging.DEBUG):
            return
        with _lock:
            if _users == 0:
                _original = getattr(guards, _NAME)
                setattr(guards, _NAME, _no_time)
            _users += 1
        self._entered = True

    def __exit__(self, *_: object) -> None:
        global _users
        if not self._entered:
            return
        with _lock:
            _users -= 1
            if _users == 0:
                setattr(torch._dynamo.guards, _NAME, _original)


def _no_time(*_: object) -> float:
    return 0.0


__all__ = ["NoGuardTimes"]
