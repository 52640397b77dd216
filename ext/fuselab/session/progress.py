"""Tuning's progress while a cell waits for it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from IPython.display import display

from fuselab.display.outcomes import trial_line

if TYPE_CHECKING:
    from fusec.report import TuningRun


class Progress:
    """Tuning's progress: a line a configuration in a terminal, one changing line elsewhere.

    Everything is shown from the caller's thread.
    """

    def __init__(self, shell: Any, *, quiet: bool) -> None:
        self._quiet = quiet
        self._terminal = not hasattr(shell, "kernel")
        self._handle: Any = None
        self._told = 0
        self._kernel = ""

    def __enter__(self) -> Progress:
        return self

    def show(self, run: TuningRun) -> None:
        """Show what is new in a run."""
        if self._quiet:
            return
        if self._kernel != run.kernel:
            self._kernel, self._told = run.kernel, 0
        if self._terminal:
            for count in range(self._told + 1, len(run.trials) + 1):
                known = run.best if run.best is not None and run.best < count else None
                print(trial_line(replace(run, trials=run.trials[:count], best=known)))
            self._told = len(run.trials)
            return
        data = {"text/plain": trial_line(run)}
        if self._handle is None:
            self._handle = display(data, raw=True, display_id=True)
        else:
            self._handle.update(data, raw=True)

    def __exit__(self, *_: object) -> None:
        if self._handle is not None:
            # The table and the plot that follow say all of it.
            self._handle.update({"text/plain": ""}, raw=True)
