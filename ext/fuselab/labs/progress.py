"""How far a student has come in this notebook, and the file that is handed in."""

from __future__ import annotations

import contextlib
import html
import io
import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fusec.inspect.terminal import fitted, terminal_width
from fuselab.edit_record import Edit
from fuselab.errors import FuselabError
from fuselab.judge.engine import judge, judge_for_points
from fuselab.judge.task import Task
from fuselab.judge.verdict import AnswerVerdict
from fuselab.labs.catalog import find_task, labs
from fuselab.labs.lab import Lab

FORMAT = 1
_LEFT = ' style="text-align: left"'
# What printing a notebook takes: long lines of code go on in the next line; they would be cut off.
# Every lab begins and ends with the table of progress, which brings it.
PRINT_STYLE = (
    "<style>@media print { body { --jp-cell-prompt-width: 52px } "
    ".jp-InputPrompt, .jp-OutputPrompt { font-size: 9px !important; padding-left: 0 !important } "
    ".jp-RenderedHTMLCommon h1 { line-height: 1.2 !important } "
    ".jp-InputArea pre, .jp-InputArea .highlight, .jp-InputArea .cm-line "
    "{ white-space: pre-wrap !important; overflow-wrap: anywhere; overflow: visible; "
    "font-size: 10px } .jp-OutputArea [style*='white-space:pre;font:inherit'] "
    "{ white-space: pre-wrap !important; overflow-wrap: anywhere } "
    ".jp-OutputArea-output pre { word-break: normal; overflow-wrap: anywhere } "
    ".jp-OutputArea-output > pre { font-size: 11px; padding-left: 5px } "
    ".jp-OutputArea-output table[style*='font-size: 85%'] { font-size: 10px !important } "
    ".jp-MarkdownOutput .highlight { margin: 0 0 1em 20px } }</style>"
)
_MOST = 1 << 22  # bytes of a hand-in
_EDIT = ("kernel", "target", "state", "reason", "text")  # what a hand-in has of an edit
COMMANDS = (
    "%%task judges a cell, %hint gives the next of three hints about the task judged last, "
    "%progress shows this table, %hand_in Your Name writes the file for your teacher."
)


class Said(str):
    """A text that is shown without quotation marks, and whose words stay whole in a notebook."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        escaped = re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(self))
        shown = f'<div style="white-space: pre-line">{escaped}</div>'
        return {"text/plain": fitted(str(self), terminal_width()), "text/html": shown}


class HandInError(FuselabError):
    """A file that is no hand-in."""


@dataclass
class TaskState:
    """What a student has done about a task.

    Attributes:
        answer: The latest text.
        best: The text with the highest score.
        score: The highest score.
        attempts: How often it was judged.
        hints: How many hints were read.
        reason: What the latest verdict said.
    """

    answer: str = ""
    best: str = ""
    score: float = 0.0
    attempts: int = 0
    hints: int = 0
    reason: str = ""


@dataclass(frozen=True)
class TaskRow:
    """A task in a table of progress."""

    task: str
    title: str
    points: float
    most: int
    attempts: int
    hints: int


@dataclass(frozen=True)
class ProgressTable:
    """Progress over one lab or several.

    Attributes:
        rows: The tasks.
        commands: What may be typed, in a sentence; empty to say nothing.
    """

    rows: tuple[TaskRow, ...]
    commands: str = ""

    @property
    def points(self) -> float:
        """What has been reached."""
        return round(sum(row.points for row in self.rows), 2)

    def lines(self) -> list[tuple[str, ...]]:
        """Return the table's cells, a head first."""
        head = ("task", "", "points", "tries", "hints")
        shown = [
            (r.task, r.title, f"{r.points:g} of {r.most}", str(r.attempts), str(r.hints))
            for r in self.rows
        ]
        most = sum(row.most for row in self.rows)
        return [head, *shown, ("total", "", f"{self.points:g} of {most}", "", "")]

    def __str__(self) -> str:
        lines = self.lines()
        widths = [max(len(line[n]) for line in lines) for n in range(5)]
        shown = [
            "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
            for line in lines
        ]
        return "\n".join([*shown, *filter(None, [self.commands])])

    __repr__ = __str__

    def _repr_mimebundle_(self, **_: object) -> dict[str, str]:
        rows = "".join(
            "<tr>" + "".join(f"<td{_LEFT}>{html.escape(cell)}</td>" for cell in line) + "</tr>"
            for line in self.lines()
        )
        text = f"{PRINT_STYLE}<table>{rows}</table>{html.escape(self.commands)}"
        return {"text/plain": fitted(str(self), terminal_width()), "text/html": text}


@dataclass
class LabProgress:
    """What was done in this process.

    Attributes:
        tasks: By the task's name.
        latest: The name of the task that was touched last.
    """

    tasks: dict[str, TaskState] = field(default_factory=dict)
    latest: str = ""

    def state(self, name: str) -> TaskState:
        """Return the state of a task; it must exist."""
        find_task(name)
        self.latest = name
        return self.tasks.setdefault(name, TaskState())

    def judge(self, name: str, text: str, *, timed: bool = True, above: int = 0) -> AnswerVerdict:
        """Judge an answer and remember it.

        Args:
            name: The task's name.
            text: The answer.
            timed: Whether limits of speed count.
            above: How many lines stand above the answer where it was written: a verdict's line
                counts them.
        """
        task, state = find_task(name), self.state(name)
        # Kept before it is judged: whoever is interrupted here can still hand it in.
        state.answer, state.best = text, state.best or text
        verdict = judge(task, "\n" * above + text if text.strip() else text, timed=timed)
        state.reason = verdict.reason
        state.attempts += 1
        if verdict.score >= state.score:
            state.best, state.score = text, verdict.score
        if verdict.ok or state.hints >= len(task.hints):
            return verdict
        said = f"%hint gives a hint ({state.hints} of {len(task.hints)} read)"
        return replace(verdict, next_step=said)

    def hint(self, name: str = "") -> Said:
        """Return the next hint about a task: of the latest if none is named."""
        name = name or self.latest
        if not name:
            return Said("Run a %%task cell first, or name one: %hint lab01.bytes")
        task, state = find_task(name), self.state(name)
        if not task.hints:
            return Said(f"There are no hints about {name}.")
        again = ", once more" if state.hints >= len(task.hints) else ""
        state.hints = min(state.hints + 1, len(task.hints))
        text = task.hints[state.hints - 1]
        return Said(f"Hint {state.hints} of {len(task.hints)} about {name}{again}: {text}")

    def table(self, chosen: Iterable[Lab] = ()) -> ProgressTable:
        """Return the progress over labs; over those that were begun if none are given."""
        wanted = list(chosen) or [
            lab for lab in labs() if any(task.name in self.tasks for task in lab.tasks)
        ]
        return ProgressTable(tuple(self._row(task) for lab in wanted for task in lab.tasks))

    def _row(self, task: Task) -> TaskRow:
        state = self.tasks.get(task.name, TaskState())
        points = task.points * state.score
        return TaskRow(task.name, task.title, points, task.points, state.attempts, state.hints)

    def hand_in(self, path: Path, student: str, edits: Sequence[Edit] = ()) -> Path:
        """Write the hand-in: every task's best answer, and what was said of it.

        What the file has of the same student stays where this notebook has nothing better: a lab
        is a notebook, and all of them are handed in as one file.

        Args:
            path: A ``.json`` file.
            student: Who hands it in.
            edits: Of kernels, which stand beside the answers and are not graded.

        Raises:
            HandInError: The file is somebody else's.
        """
        earlier = _earlier(path, student)
        tasks = earlier.get("tasks", {})
        for name, state in self.tasks.items():
            known = tasks.get(name, {})
            if state.score >= _score(known):
                tasks[name] = vars(state)
            else:
                tasks[name] = {**vars(state), "best": known["best"], "score": known["score"]}
        new = [{name: getattr(edit, name) for name in _EDIT} for edit in edits]
        edited = earlier.get("edits")
        old = [e for e in edited if e not in new] if isinstance(edited, list) else []
        data = {
            "format": FORMAT,
            "student": student,
            "tasks": dict(sorted(tasks.items())),
            "edits": [*old, *new],
        }
        whole = path.with_suffix(".part")
        whole.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
        whole.replace(path)
        return path


_progress = LabProgress()


def progress() -> LabProgress:
    """Return this process's progress."""
    return _progress


def points(name: str) -> float:
    """Return the points that a task has brought in this notebook: what graders ask for.

    The best answer is judged once more: what the notebook says of itself counts nothing.  Why
    points are missing is printed.

    Raises:
        NotJudged: The machine, not the answer, was in the way.
    """
    task = find_task(name)
    best = _progress.tasks.get(name, TaskState()).best
    if not best.strip():
        return 0.0
    with _standard_error_shut():
        verdict = judge_for_points(task, best)
    if not verdict.ok:
        print(verdict.title)
    return round(task.points * verdict.score, 4)


@contextlib.contextmanager
def _standard_error_shut() -> Iterator[None]:
    """Let nothing through: nbgrader gives no points for a cell that writes there."""
    kept, shut = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            os.dup2(shut, 2)
            yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(shut)


def _earlier(path: Path, student: str) -> dict[str, Any]:
    """Return what a student has handed in before; nothing if the file is no hand-in.

    Raises:
        HandInError: It is somebody else's.
    """
    try:
        other, _ = read_hand_in(path)
    except HandInError:
        return {}
    if other != student:
        raise HandInError(f"{path.name} is {other}'s", "rename it, or give another name")
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def _score(state: dict[str, Any]) -> float:
    """Return a score as a file says it, if there is an answer with it."""
    score = state.get("score")
    number = isinstance(score, (int, float)) and bool(state.get("best"))
    return float(score) if number and score is not None else 0.0


def read_hand_in(path: Path) -> tuple[str, dict[str, str]]:
    """Return who handed in, and the best answer to each task.

    Raises:
        HandInError: It is no hand-in.
    """

    def refuse(why: str) -> HandInError:
        return HandInError(f"{path.name} is not a hand-in: {why}", "write one with %hand_in")

    if not path.is_file():
        raise refuse("it is not a file")
    if path.stat().st_size > _MOST:
        raise refuse("it is too large")
    try:
        data: Any = json.loads(path.read_text(encoding="utf-8"))
        json.dumps(data, ensure_ascii=False).encode()  # half of a character can be written as JSON
    except (ValueError, RecursionError):
        raise refuse("it is not JSON") from None
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise refuse(f"its format is not {FORMAT}")
    tasks, student = data.get("tasks"), data.get("student")
    if not isinstance(tasks, dict) or not isinstance(student, str):
        raise refuse("it has no tasks, or no student")
    answers = {}
    for name, state in tasks.items():
        text = state.get("best") if isinstance(state, dict) else None
        if not isinstance(text, str):
            raise refuse(f"the answer to {name} is not a text")
        if text:
            answers[name] = text
    return student, answers


__all__ = [
    "COMMANDS",
    "PRINT_STYLE",
    "HandInError",
    "LabProgress",
    "ProgressTable",
    "Said",
    "points",
    "progress",
    "read_hand_in",
]
