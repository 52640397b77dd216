"""Work that a thread of its own begins before somebody needs what comes of it.

AOTAutograd asks for the backward part of a graph when the first gradient arrives. By then the
forward part has run for the first time, which is waiting for the most part: for kernels, and for
libraries that start. A thread can have the backward part ready in the meantime.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

import torch

Result = TypeVar("Result")


class EarlyValue(Generic[Result]):
    """Something to be made once, by a thread that is told to begin or else by who needs it first.

    Args:
        make: Makes it; an exception of it is raised by ``result``, each time. After an interrupt
            it is called again.
    """

    def __init__(self, make: Callable[[], Result]) -> None:
        self._make: Callable[[], Result] | None = make
        self._device = torch.cuda.current_device() if torch.cuda.is_initialized() else None
        self._result: Result | None = None
        self._error: Exception | None = None
        self._lock = threading.Lock()
        self._begun = False

    def begin(self) -> None:
        """Have a thread make it, unless that is done or under way; returns at once."""
        if self._begun:
            return
        self._begun = True
        threading.Thread(target=self._work, name="fusec-early").start()

    def result(self) -> Result:
        """Return it: made now, or waited for.

        Raises:
            Exception: What making it raised.
        """
        self._begun = True
        self._finish()
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value]

    def _work(self) -> None:
        if self._device is None:
            self._finish()
            return
        with torch.cuda.device(self._device):  # a new thread's would be the first one
            self._finish()

    def _finish(self) -> None:
        with self._lock:
            if self._make is None:
                return
            try:
                self._result = self._make()
            except Exception as error:
                self._error = error
            self._make = None


__all__ = ["EarlyValue"]
