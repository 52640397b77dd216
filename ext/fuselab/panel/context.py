"""What the tabs of one panel share: the cell, the worker, and what the user is doing.

Rules that keep it calm whatever thread a callback runs on:

- ``cell.lock`` guards compile, launch and drawing. Only the worker takes it, for as long as it
  needs; a callback never does.
- ``state`` guards the panel's own facts and the widgets that show them. It is held for the
  moment of a change; nobody waits for ``cell.lock`` while holding it.
- What callbacks need of the cell is in ``facts``, because the cell may take its lock to answer.
- Nothing is printed or displayed. Results are traits that change.
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from fusec.errors import FusecError
from fusec.kernel import Kernel
from fusec.report import Timing, Verdict
from fuselab.display import words
from fuselab.panel.attempts import Attempt, attempt
from fuselab.panel.worker import JobQueue


class PanelCell(Protocol):
    """What the panel needs of a fused cell (``fuselab.session.fused_cell.FusedCell``).

    The late tabs read more of it, as data: ``breaks``, ``guards``, ``recompiles``, ``verdict``.
    """

    @property
    def name(self) -> str:
        """The cell's name, for the head line."""

    @property
    def source(self) -> str:
        """The cell's own text."""

    @property
    def kernels(self) -> Mapping[str, Kernel]:
        """The kernels by name, in the order in which they run."""

    @property
    def graphs(self) -> Sequence[Any]:
        """The compiled graphs (``CompiledGraph`` of fusec), in order of first run."""

    @property
    def eager(self) -> Timing | None:
        """Of the whole cell in eager; None where it was not timed."""

    @property
    def fused(self) -> Timing | None:
        """Of the whole cell as compiled; None where it was not timed."""

    @property
    def max_error(self) -> float | None:
        """Largest difference to eager; None where it was not compared."""

    @property
    def others(self) -> Mapping[str, Timing]:
        """Of the whole cell with other compilers, by name."""

    @property
    def kernel_times(self) -> Mapping[str, Timing]:
        """Of each kernel alone, by its name in ``kernels``, where it was timed."""

    @property
    def lock(self) -> threading.RLock:
        """A re-entrant lock round compile, launch and drawing; panels share it."""

    def share(self, folder: str | Path = ".") -> Sequence[Path]:
        """Write the result as files to give away; return their paths."""

    def refresh(self) -> tuple[Timing | None, Timing | None]:
        """Time the cell again after a change; return eager and fused."""

    def _repr_mimebundle_(
        self, include: object = None, exclude: object = None
    ) -> Any:  # a dict, or a dict and its metadata, as IPython has it
        """Return the static forms of the result."""


@dataclass(frozen=True)
class Checked:
    """A verdict and the text it is about."""

    text: str
    verdict: Verdict


@dataclass(frozen=True)
class CellFacts:
    """What there is to show of a cell, read while its lock was held; named as it names them.

    Attributes:
        idle: The kernels that the latest run did not call: they are for earlier inputs, come last
            in ``kernels``, and count in no figure.
    """

    kernels: Mapping[str, Kernel]
    eager: Timing | None
    fused: Timing | None
    others: Mapping[str, Timing]
    kernel_times: Mapping[str, Timing]
    max_error: float | None
    limit: float | None = None
    extern_times: Mapping[str, Timing] = field(default_factory=dict)
    failed: Mapping[str, str] = field(default_factory=dict)
    error: str = ""
    early: bool = False
    idle: frozenset[str] = frozenset()
    awaited: bool = False

    @property
    def latest(self) -> Mapping[str, Kernel]:
        """The kernels of the latest run: those that the result counts."""
        return {name: k for name, k in self.kernels.items() if name not in self.idle}


class Bench:
    """The state of one panel.

    Attributes:
        cell: The fused cell.
        state: The lock round everything below.
        worker: Where work is done.
        facts: The cell as it was after the latest job.
        selected: Name of the kernel that is shown; empty where the cell has none.
        drafts: Kernel name to the text in its editor, where it differs from the text in use.
        checked: Kernel name to its latest verdict.
        attempts: Kernel name to everything that was checked in this panel, the oldest first.
        activity: What the worker does now, in words; empty when it rests.
        problem: Message and traceback of the latest job that failed in a way that it should
            not have.
        job: What the worker does now, by the key that it was asked for with.
        note: A line about the latest action, where that is no verdict.
        noted_by: The key of the job that the note is about; empty where nobody asks.
        after_each: Called by the worker after each job that did not fail.
    """

    def __init__(self, cell: PanelCell) -> None:
        self.cell = cell
        self.state = threading.RLock()
        self.worker = JobQueue(f"fuselab-{cell.name}", self._failed, self._busy)
        self.facts = CellFacts({}, None, None, {}, {}, None)
        self.selected = ""
        self.drafts: dict[str, str] = {}
        self.checked: dict[str, Checked] = {}
        self.attempts: dict[str, list[Attempt]] = {}
        self.activity = ""
        self.problem: tuple[str, str] | None = None
        self.job = ""
        self.note, self.noted_by = "", ""
        self.after_each: Callable[[], None] = lambda: None
        self._listeners: list[Callable[[], None]] = []
        self._waiting: dict[str, str] = {}  # activities of the jobs that have not begun
        self.look()

    def look(self) -> None:
        """Read the cell again; waits for its lock, so a callback must not do it."""
        cell = self.cell
        with cell.lock:
            latest = dict(getattr(cell, "latest_kernels", cell.kernels))
            facts = CellFacts(
                {**latest, **cell.kernels},
                cell.eager,
                cell.fused,
                dict(cell.others),
                dict(cell.kernel_times),
                cell.max_error,
                getattr(cell, "limit", None),
                dict(getattr(cell, "extern_times", {})),
                dict(getattr(cell, "failed", {})),
                _error(cell),
                bool(getattr(cell, "early", False)),
                frozenset(cell.kernels) - frozenset(latest),
                bool(getattr(cell, "awaited", False)),
            )
        with self.state:
            before, self.facts = self.facts, facts
            for name in list(self.checked):
                # A cell that was compiled again has other kernels under the same names.
                if facts.kernels.get(name) is not before.kernels.get(name):
                    del self.checked[name]
            left = self.selected in facts.idle - before.idle and self.selected not in self.drafts
            if self.selected not in facts.kernels or left:
                times = facts.kernel_times  # the slowest is what somebody wants to edit
                cost = {n: times[n].median if n in times else 0.0 for n in facts.latest}
                self.selected = max(cost, key=lambda name: cost[name], default="")

    @property
    def simulated(self) -> bool:
        """Whether a GPU is missing for which the kernels are: nothing is timed or tuned then."""
        return bool(getattr(self.cell, "simulated", False))

    @property
    def kernel(self) -> Kernel | None:
        """The kernel that is shown."""
        return self.facts.kernels.get(self.selected)

    def draft(self, name: str) -> str:
        """Return the text in the editor of a kernel: the draft, or else the text in use."""
        return self.drafts.get(name, self.facts.kernels[name].source)

    def set_draft(self, name: str, text: str) -> None:
        """Remember what a kernel's editor holds."""
        with self.state:
            kernel = self.facts.kernels.get(name)
            if kernel is None:
                return
            if text == kernel.source:
                self.drafts.pop(name, None)
            else:
                self.drafts[name] = text

    def tried(self, name: str, kernel: Kernel, text: str, verdict: Verdict) -> None:
        """Remember a verdict about a text of a kernel."""
        with self.state:
            self.checked[name] = Checked(text, verdict)
            known = self.attempts.get(name, [])
            self.attempts[name] = attempt(known, text, verdict, kernel.generated.text)

    def listen(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` after each change, with ``state`` held."""
        self._listeners.append(listener)

    def changed(self) -> None:
        """Let every part of the panel show what is now the case."""
        with self.state:
            for listener in self._listeners:
                listener()

    @property
    def waiting(self) -> str:
        """What has been asked for and has not begun: ``then: Checking gelu``; or nothing."""
        return f"then: {', '.join(self._waiting.values())}" if self._waiting else ""

    @property
    def doing(self) -> str:
        """What the worker does now and what comes next, in words; empty when it rests."""
        if not self.activity:
            return ""
        return f"{self.activity} …" + (f" ({self.waiting})" if self.waiting else "")

    def has(self, job: str) -> bool:
        """Whether a job is being done, or has been asked for."""
        return job == self.job or job in self._waiting

    def say(self, note: str, by: str = "") -> None:
        """Leave a line about the latest action.

        Args:
            note: The line.
            by: The key of the job that it is about, for who shows only those of one.
        """
        self.note, self.noted_by = note, by

    def do(self, activity: str, job: Callable[[], None], replaces: str = "") -> None:
        """Queue a job for the worker and return at once.

        Args:
            activity: What is shown while it runs: ``Checking gelu``.
            job: Takes ``cell.lock`` itself, for as long as it needs it.
            replaces: See ``JobQueue.submit``.
        """
        ticket = replaces or activity

        def run() -> None:
            with self.state:
                self._waiting.pop(ticket, None)
                self.activity, self.job, self.problem = activity, ticket, None
                self.say("")
                self.changed()
            try:
                job()
            finally:
                self.look()
                self.changed()
            self.after_each()

        with self.state:
            self._waiting[ticket] = activity
            if self.activity:  # who asks beside a long job is told that it was heard
                self.changed()
        self.worker.submit(run, replaces)

    def _busy(self, busy: bool) -> None:
        if not busy:
            with self.state:
                self.activity = self.job = ""
                self.changed()

    def _failed(self, error: BaseException) -> None:
        if isinstance(error, FusecError):  # the user's to mend, and it says how
            problem = (str(error), "")
        else:
            message = f"{type(error).__name__}: {error}".strip().splitlines()[0]
            problem = (message, "".join(traceback.format_exception(error)))
        with self.state:
            self.problem = problem
            self.changed()


def _error(cell: PanelCell) -> str:
    """Say how far the worst output is from eager, the one that the result names as well."""
    verdict = getattr(cell, "verdict", None)
    outputs = verdict.outputs if verdict is not None else ()
    output = words.worst(outputs)
    if output is None:
        return f"max error {words.error(cell.max_error)}" if cell.max_error is not None else ""
    of = f" ({output.name})" if len(outputs) > 1 else ""
    return f"error {words.error(output.against_eager)}{of}"
