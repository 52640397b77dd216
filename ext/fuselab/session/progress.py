"""What a cell does while somebody waits for it, in one line that changes; and how it is stopped.

A line stands there when a phase begins, so within a moment of its beginning, however long it takes.
Everything is shown from the caller's thread: frontends lose what other threads display.
"""

from __future__ import annotations

import base64
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from IPython.display import display

from fusec.inspect.terminal import fitted, terminal_width
from fuselab.display.outcomes import trial_line

if TYPE_CHECKING:
    from fusec.tuning_report import TuningRun

# What is left of the line where it stood: nothing that has a height.
NOTHING = {"text/plain": "", "text/html": "<span></span>"}


class Stopped(KeyboardInterrupt):
    """Somebody pressed Stop, or Ctrl-C: what was done then, and what is in use now, in one line."""

    def __init__(self, doing: str, left: str) -> None:
        super().__init__(f"stopped while {doing}; {left}")

    def _render_traceback_(self) -> list[str]:
        """Show IPython the one line: the stack is ours."""
        return [f"KeyboardInterrupt: {self}"]


class Phases:
    """The line that says what is being done: compiling, checking, measuring.

    Args:
        shell: IPython's.
        name: Of the cell or the kernel.
        quiet: Whether to show nothing; the phase is known all the same.

    Attributes:
        name: Likewise; may change, when the cell turns out to be called otherwise.
        doing: What is being done.
        stands: Whether a line is there.
    """

    def __init__(self, shell: Any, name: str, *, quiet: bool = False) -> None:
        self.name = name
        self._notebook = hasattr(shell, "kernel")
        self._quiet = quiet or not (self._notebook or sys.stdout.isatty())
        self._handle: Any = None
        self.stands = False
        self._line = ""
        self.doing = "running"

    def begin(self, doing: str) -> None:
        """A phase begins."""
        self.doing = doing
        if self._quiet:
            return
        self.stands = True
        line = f"{self.name}: {doing} \N{HORIZONTAL ELLIPSIS}"
        if line == self._line:
            return
        self._line = line
        if not self._notebook:
            sys.stdout.write(f"\r\x1b[K{line}")
        elif self._handle is None:
            self._handle = display({"text/plain": line}, raw=True, display_id=True)
        else:
            self._handle.update({"text/plain": line}, raw=True)
        # Another thread sends it, which would wait while an import holds all threads.
        sys.stdout.flush()

    def end(self) -> None:
        """Take the line away: what follows says all of it."""
        if not self.stands:
            return
        self.stands, self._line = False, ""
        if not self._notebook:
            sys.stdout.write("\r\x1b[K")
            sys.stdout.flush()
        elif self._handle is not None:
            self._handle.update(NOTHING, raw=True)

    @contextmanager
    def stopping(self, left: str) -> Iterator[None]:
        """Turn an interrupt into one line that says what was being done.

        Args:
            left: What is in use then.
        """
        try:
            yield
        except Stopped:
            raise
        except KeyboardInterrupt:
            self.end()
            raise Stopped(f"{self.doing} {self.name}", left) from None
        except BaseException:
            self.end()
            raise


@contextmanager
def getting_ready(shell: Any) -> Iterator[None]:
    """Say that a cell waits until what it needs has been read; for ``BetweenCells``."""
    phases = Phases(shell, "fuselab")
    phases.begin("getting ready")
    try:
        yield
    finally:
        phases.end()


class Progress:
    """Tuning's progress: a line a configuration in a terminal, one changing line elsewhere.

    In a notebook the search is drawn below the line as it goes on.
    """

    def __init__(self, shell: Any, *, quiet: bool) -> None:
        self._quiet = quiet
        self._terminal = not hasattr(shell, "kernel")
        self._handle: Any = None
        self._told = 0
        self._kernel = ""

    @property
    def drawn(self) -> bool:
        """Whether there is a place for a picture."""
        return not self._terminal and not self._quiet

    def __enter__(self) -> Progress:
        return self

    def begin(self, kernel: str) -> None:
        """A search begins; its first configuration has to be built."""
        if self.drawn:
            self._update({"text/plain": f"{kernel}: tuning \N{HORIZONTAL ELLIPSIS}"})

    def show(self, run: TuningRun, picture: bytes = b"") -> None:
        """Show what is new in a run."""
        if self._quiet:
            return
        if self._kernel != run.kernel:
            self._kernel, self._told = run.kernel, 0
        if self._terminal:
            for count in range(self._told + 1, len(run.trials) + 1):
                known = run.best if run.best is not None and run.best < count else None
                line = trial_line(replace(run, trials=run.trials[:count], best=known))
                print(fitted(line, terminal_width()))
            self._told = len(run.trials)
            return
        data = {"text/plain": trial_line(run)}
        if picture:
            from fuselab.display.pages.page import picture as image

            encoded = base64.b64encode(picture).decode()
            said = f"<div>{data['text/plain'].replace('<', '&lt;')}</div>"
            data["text/html"] = said + image(encoded, f"{run.kernel}: the search so far")
        self._update(data)

    def _update(self, data: dict[str, str]) -> None:
        if self._handle is None:
            self._handle = display(data, raw=True, display_id=True)
        else:
            self._handle.update(data, raw=True)

    def __exit__(self, *_: object) -> None:
        if self._handle is not None:
            # The table and the plot that follow say all of it.
            self._handle.update(NOTHING, raw=True)
