"""Results whose figures came too early are shown again, in place, once they can be measured.

The native part of calls is built once a machine, beside the first cells; a short graph that was
timed before it was there took several times as long as it will. Where frontends can change what a
cell has shown (Jupyter's), such a cell is timed again by the kernel's own event loop, in the thread
that runs cells, as soon as no cell has run for a moment. In a terminal what was printed stays; it
says what to do.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from IPython.display import display

from fuselab.session.fused_cell import FusedCell

_IDLE = 1.0  # seconds without a cell: the next one of "run all" is there before that
_MOST_GRAPHS = 6  # each is timed for a moment, in which no cell can begin
_LOOK = 0.2  # seconds between two looks whether it is built


@dataclass(frozen=True)
class _Shown:
    """A result on a page.

    Attributes:
        cell: Whose.
        handle: IPython's, of the display.
        refresh: Measures anew.
        context: In which it was shown: it says of which cell the output is.
    """

    cell: FusedCell
    handle: Any
    refresh: Callable[[], object]
    context: contextvars.Context

    def show(self) -> None:
        """Show it once more in its place, and in the cell's panel, if that is there."""
        self.cell.awaited = False
        self.context.run(self.handle.update, self.cell)
        if (panels := sys.modules.get("fuselab.panel")) is not None:
            panels.look_again(self.cell)


class LateFigures:
    """What one shell has shown too early.

    Args:
        shell: IPython's.
    """

    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._waiting: list[_Shown] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watched: object = None  # by a thread, for as long as this is the same
        self._timer: asyncio.TimerHandle | None = None
        self._built = False
        self._running = 0  # cells: one may run others

    def show(self, cell: FusedCell, refresh: Callable[[], object]) -> bool:
        """Display a result that came too early; once more, in its place, when it can be measured.

        Args:
            cell: Whose result.
            refresh: Measures, and checks, what has changed.

        Returns:
            False where it has to be displayed as it is, for good.
        """
        few = len(cell.latest_graphs) <= _MOST_GRAPHS
        loop = _own_loop(self._shell) if cell.early and few else None
        if loop is None:
            return False
        cell.awaited = True
        handle = display(cell, display_id=True)
        self._waiting.append(_Shown(cell, handle, refresh, contextvars.copy_context()))
        if self._watched is None:
            self._begin(loop)
        return True

    def end(self) -> None:
        """Forget what was to be shown again."""
        self._waiting.clear()
        self._watched = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for event, callback in self._hooks():
            with contextlib.suppress(ValueError):  # it is not registered any more
                self._shell.events.unregister(event, callback)

    def _hooks(self) -> tuple[tuple[str, Callable[[], None]], ...]:
        return ("pre_execute", self._before_cell), ("post_execute", self._after_cell)

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop, self._built, self._running = loop, False, 1  # the cell that asks
        for event, callback in self._hooks():
            self._shell.events.register(event, callback)
        self._watched = token = object()
        threading.Thread(
            target=self._watch, args=(token,), name="fuselab-late", daemon=True
        ).start()

    def _watch(self, token: object) -> None:
        """Wait for the build, in a thread, which shows nothing itself."""
        from fusec.call import native

        while self._watched is token and not native.await_types(0):
            time.sleep(_LOOK)
        loop = self._loop
        if self._watched is token and loop is not None:
            with contextlib.suppress(RuntimeError):  # the kernel ends
                loop.call_soon_threadsafe(self._is_built, token)

    def _is_built(self, token: object) -> None:
        if self._watched is token:
            self._built = True
            self._when_idle()

    def _before_cell(self) -> None:
        self._running += 1

    def _after_cell(self) -> None:
        self._running = max(self._running - 1, 0)
        self._when_idle()

    def _when_idle(self) -> None:
        """Do it when no cell has run for a moment, unless one runs: its end asks again."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._built and self._waiting and not self._running and self._loop is not None:
            self._timer = self._loop.call_later(_IDLE, self._do_one)

    def _do_one(self) -> None:
        """Measure and show one result: a cell that was sent meanwhile comes before the next."""
        self._timer = None
        if self._running or not self._waiting:
            return
        shown = self._waiting[0]
        if not shown.cell.lock.acquire(blocking=False):
            self._when_idle()  # the panel tunes it, say
            return
        try:
            self._waiting.pop(0)
            with contextlib.suppress(Exception):  # what is shown says then what to do
                shown.refresh()
            with contextlib.suppress(Exception):
                shown.show()
        except KeyboardInterrupt:  # stopped: what is shown says what to do
            for each in (shown, *self._waiting):
                with contextlib.suppress(Exception):
                    each.show()
            self._waiting.clear()
        finally:
            shown.cell.lock.release()
        if self._waiting:
            self._when_idle()
        else:
            self.end()


def _own_loop(shell: Any) -> asyncio.AbstractEventLoop | None:
    """Return the event loop of a kernel of Jupyter's; None elsewhere."""
    if not hasattr(shell, "kernel") or threading.current_thread() is not threading.main_thread():
        return None
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


__all__ = ["LateFigures"]
