"""Getting ready while the user types: between cells, what the first fused cell needs is imported.

Importing TorchDynamo, AOTAutograd and what draws results takes seconds.  It happens in a thread,
and only while no cell runs: two threads that import parts of torch at once may each see a
half-made module of the other's.  So a cell first ends the thread, which stops after the step that
it is at, and after the cell another thread goes on where it stopped.  A fused cell that comes too
early imports the rest itself, as if there were no thread.

Between two modules the thread sleeps for a moment.  An import reads files, and lets go of Python's
lock for as long as each takes, which is too short for another thread to wake up and take it: the
others then never wait long enough to ask for it, and stood still for up to three seconds, the
answer to ``%load_ext``, completions and the first line of a cell among them.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any

from fusec.gc_pause import Rest

_NOTICED = 0.1  # seconds
_NAP = 0.001  # seconds; some 1,300 modules are imported


class BetweenCells:
    """Steps that are done between the cells of one shell.

    Args:
        events: The shell's events.
        steps: What to do, in order.
        waiting: Entered while a cell has to wait for a step for longer than one notices.
    """

    def __init__(
        self,
        events: Any,
        steps: Iterable[Callable[[], object]],
        waiting: Callable[[], AbstractContextManager[object]] = contextlib.nullcontext,
    ) -> None:
        self._events = events
        self._waiting = waiting
        self._left = list(steps)
        self._stop = threading.Event()
        self._hurry = threading.Event()
        self._thread: threading.Thread | None = None
        self._running = 0  # cells: one may run others

    def begin(self) -> None:
        """Go on after each cell, from the one that runs now on."""
        self._running = _cells_running()
        self._events.register("pre_execute", self.before_cell)
        self._events.register("post_execute", self.after_cell)

    def end(self) -> None:
        """Stop, and leave the shell as it was."""
        self.pause()
        for event, callback in (
            ("pre_execute", self.before_cell),
            ("post_execute", self.after_cell),
        ):
            with contextlib.suppress(ValueError):  # it is not registered any more
                self._events.unregister(event, callback)

    def before_cell(self) -> None:
        """A cell is about to run."""
        self._running += 1
        self.pause()

    def after_cell(self) -> None:
        """A cell has run; another one, which it is a part of, may still be running."""
        self._running = max(self._running - 1, 0)
        if not self._running:
            self.resume()

    def resume(self) -> None:
        """Go on with the steps that are left, in a thread."""
        if self._thread is not None:
            return
        if not self._left:
            self.end()
            return
        self._stop.clear()
        self._hurry.clear()
        # Not a daemon: at exit Python waits for the step rather than cutting an import in two.
        self._thread = threading.Thread(target=self._work, name="fuselab-ahead")
        self._thread.start()

    def pause(self) -> None:
        """Wait until nothing is done in the background."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._stop.set()
            thread.join(_NOTICED)
            if thread.is_alive():
                with self._waiting():
                    self._hurry.set()  # it has been said that somebody waits
                    thread.join()

    def _work(self) -> None:
        while self._left and not self._stop.is_set():
            step = self._left.pop(0)
            # Who needs it gets to see the error, in the cell that needs it. The collector rests:
            # among so many new objects it would hold all threads for up to a second.
            with contextlib.suppress(Exception), Rest(), _Naps(self._hurry):
                step()
            if not threading.main_thread().is_alive():
                return  # the process ends


class _Naps:
    """While it is entered, each module that this thread imports lets other threads come first.

    Args:
        hurry: When set, there are no naps any more.
    """

    def __init__(self, hurry: threading.Event) -> None:
        self._hurry = hurry
        self._thread = threading.get_ident()

    def __enter__(self) -> None:
        sys.meta_path.insert(0, self)

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(ValueError):  # a step has put other finders in place of all
            sys.meta_path.remove(self)

    def find_spec(self, _name: str, _path: Any = None, _target: Any = None) -> None:
        """Find nothing, as one of Python's finders; called before a module is looked for."""
        if threading.get_ident() == self._thread and not self._hurry.is_set():
            time.sleep(_NAP)


def _cells_running() -> int:
    """Return how many cells the caller is a part of: none at the start of a shell."""
    count, frame = 0, sys._getframe()
    while frame.f_back is not None:
        frame = frame.f_back
        count += frame.f_code.co_name == "run_cell_async"
    return count


def display_steps() -> tuple[Callable[[], object], ...]:
    """Return what makes the first result quick to show: templates, colors, plots."""
    from fuselab.display import render
    from fuselab.display.plots import figures as plots

    return (render.prepare, plots.prepare, _import_panel)


def _import_panel() -> None:
    """Import the panel where there can be one: its libraries take longer than showing it."""
    if "ipykernel" in sys.modules:
        import fuselab.panel  # noqa: F401
        from fuselab.panel.widgets.code import colored

        colored("x = 1", "python")  # reads the rules by which stages are colored


__all__ = ["BetweenCells", "display_steps"]
