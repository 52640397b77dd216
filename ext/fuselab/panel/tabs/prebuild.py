"""The tabs that nobody has opened yet, made while nothing else happens.

Opening a tab costs a message to the kernel, one back for each of its widgets, and drawing them:
two tenths of a second, of which nothing is left where the tab was made before. Each widget costs
room in the saved notebook as well, and in the page for good, which keeps something of every widget
that it ever had. So one panel has them made, the one that somebody came near to last; the panel
before it lets go of those that nobody has opened.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable

REST = 0.25  # seconds from one step to the next: a person may do something in between
LONGER = 2.0  # seconds until the next look, where somebody else is busy

_latest: Prebuild | None = None


class Prebuild:
    """Steps that are done one by one while nobody needs the kernel or the worker.

    Args:
        first: What to do once the panel is on the page, whether somebody is near or not.
        steps: What to do, in order; each is given to ``submit``.
        submit: Puts a step on the panel's worker.
        busy: Whether the panel, or another one, is at work.
        undo: What to do once it is another panel's turn.
    """

    def __init__(
        self,
        first: Callable[[], None],
        steps: Iterable[Callable[[], None]],
        submit: Callable[[Callable[[], None]], None],
        busy: Callable[[], bool],
        undo: Callable[[], None],
    ) -> None:
        self._first = first
        self._is_new = False  # on the page, and nothing was done yet
        self._steps = tuple(steps)
        self._left = list(self._steps)
        self._undo = undo
        self._submit = submit
        self._busy = busy
        self._timer: threading.Timer | None = None
        self._lock = threading.Lock()

    def seen(self) -> None:
        """Do what comes first."""
        self._is_new = True
        self._wait(REST)

    def begin(self) -> None:
        """Go on from here, instead of the panel that did so before."""
        global _latest
        if _latest is not None and _latest is not self:
            _latest._give_up()
        _latest = self
        self._wait(REST)

    def end(self) -> None:
        """Do nothing any more, until the next ``begin``."""
        with self._lock:
            self._is_new = False
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

    def _give_up(self) -> None:
        with self._lock:
            self._left = list(self._steps)
        self._submit(self._undo)

    def _wait(self, seconds: float) -> None:
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = None
            if self._is_new or (self._left and _latest is self):
                self._timer = threading.Timer(seconds, self._step)
                self._timer.daemon = True
                self._timer.start()

    def _step(self) -> None:
        if cell_runs() or self._busy():
            self._wait(LONGER)
            return
        with self._lock:
            step = None
            if self._is_new:
                self._is_new, step = False, self._first
            elif self._left and _latest is self:
                step = self._left.pop(0)
        if step is not None:
            self._submit(step)
            self._wait(REST)


def cell_runs() -> bool:
    """Whether the main thread runs a cell at the moment."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None:
        if frame.f_code.co_name == "run_cell_async":
            return True
        frame = frame.f_back
    return False
