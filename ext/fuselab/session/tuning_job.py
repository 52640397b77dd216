"""One tuning run on a thread of its own, for whoever waits for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from fusec.tuning_report import TuningRun

if TYPE_CHECKING:
    from fusec.kernel import Kernel

EVERY = 0.5  # seconds between two pictures


class TuningJob:
    """One tuning run on a thread of its own, which displays and prints nothing."""

    def __init__(
        self,
        kernel: Kernel,
        budget: float,
        lock: threading.RLock,
        draw: Callable[[TuningRun], bytes] | None = None,
    ) -> None:
        """Begin.

        Args:
            kernel: What to tune.
            budget: Seconds.
            lock: Held while it runs.
            draw: Draws the search so far, between two measurements and now and then.
        """
        self._draw = draw
        self._next_draw = 0.0
        # With what it shows: what stands beside it must be of the same moment.
        self.picture: tuple[TuningRun, bytes] | None = None
        self.stop = threading.Event()
        self._kernel = kernel
        self._budget = budget
        self._lock = lock
        self._done = threading.Event()
        self._latest: TuningRun | None = None
        self._run: TuningRun | None = None
        self._error: BaseException | None = None
        name = f"fuselab-tune-{kernel.name}"
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def _work(self) -> None:
        try:
            with self._lock:
                self._run = self._kernel.tune(self._budget, self._note, self.stop)
        except BaseException as error:
            self._error = error
        finally:
            self._done.set()

    def _note(self, run: TuningRun) -> None:
        now = time.monotonic()
        if self._draw is not None and now >= self._next_draw:
            self.picture = run, self._draw(run)
            # A tenth of the time at the most.
            self._next_draw = time.monotonic() + max(EVERY, 9 * (time.monotonic() - now))
        self._latest = run

    def show(self, run: TuningRun, shown: Callable[..., None]) -> None:
        """Show a state of the search; with the latest picture, the state that it shows.

        Args:
            run: The latest state.
            shown: Takes a state, and its picture where there is one.
        """
        shown(*(self.picture or (run,)))

    def wait(self, progress: Callable[[TuningRun], None] | None) -> None:
        """Wait for the end; hand each new state to ``progress`` on the caller's thread."""
        shown: TuningRun | None = None
        # Short waits, so that an interrupt arrives; long enough to leave the cores alone.
        while not self._done.wait(0.1 if progress is None else 0.25):
            if progress is not None and self._latest is not None and self._latest is not shown:
                shown = self._latest
                progress(shown)
        if progress is not None and self._latest is not None and self._latest is not shown:
            progress(self._latest)

    def result(self) -> TuningRun:
        """Return the finished run, or raise what went wrong in it."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        assert self._run is not None
        return self._run
