"""The worker: everything that takes time runs here, one job after the other.

A widget callback may run on any thread (the main one, or ipykernel's subshell threads, beside a
running cell), so a callback only leaves a job here and returns.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

Job = Callable[[], None]


class JobQueue:
    """A queue of jobs and, while there are any, one thread that does them.

    The thread ends with the last job, so a notebook full of panels holds no idle threads.
    """

    def __init__(
        self,
        name: str,
        on_error: Callable[[BaseException], None],
        on_busy: Callable[[bool], None],
    ) -> None:
        """Make a worker; no thread starts yet.

        Args:
            name: For debuggers: the thread's name.
            on_error: Called on the worker's thread with what a job raised.
            on_busy: Called on the worker's thread with True before the first job and with
                False after the last.
        """
        self._name = name
        self._on_error = on_error
        self._on_busy = on_busy
        self._jobs: list[tuple[str, Job]] = []
        self._running = False
        self._changed = threading.Condition()

    def submit(self, job: Job, replaces: str = "") -> None:
        """Queue a job and return at once.

        Args:
            job: What to do; it must neither print nor display.
            replaces: Jobs with the same non-empty word that have not begun are dropped: of
                five slider moves only the last is worth checking.
        """
        with self._changed:
            if replaces:
                self._jobs = [entry for entry in self._jobs if entry[0] != replaces]
            self._jobs.append((replaces, job))
            if self._running:
                return
            self._running = True
        threading.Thread(target=self._run, name=self._name, daemon=True).start()

    def clear(self) -> None:
        """Drop the jobs that have not begun."""
        with self._changed:
            self._jobs.clear()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until nothing is left to do; return False when the time ran out first."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._running, timeout)

    def _run(self) -> None:
        self._guarded(lambda: self._on_busy(True))
        while True:
            with self._changed:
                job = self._jobs.pop(0)[1] if self._jobs else None
            if job is not None:
                self._guarded(job)
                continue
            self._guarded(lambda: self._on_busy(False))
            with self._changed:
                if not self._jobs:  # none came while the panel was told
                    self._running = False
                    self._changed.notify_all()
                    return
            self._guarded(lambda: self._on_busy(True))

    def _guarded(self, job: Job) -> None:
        try:
            job()
        except BaseException as error:
            # A thread's traceback would land in whichever cell runs now, or nowhere.
            self._on_error(error)
