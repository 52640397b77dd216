"""Grades a class: every answer of every hand-in is judged anew, whatever the file says of it."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fuselab.errors import FuselabError
from fuselab.judge.engine import judge_for_points
from fuselab.labs.catalog import find_task, labs
from fuselab.labs.lab import Lab
from fuselab.labs.progress import read_hand_in


@dataclass(frozen=True)
class Graded:
    """A hand-in, graded.

    Attributes:
        file: Its name.
        student: Who handed it in.
        points: By task.
        reasons: What was said of answers that do not pass, by task.
        problem: Why it could not be graded, or which tasks of it; empty if all of it was.
    """

    file: str
    student: str
    points: dict[str, float] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    problem: str = ""

    @property
    def total(self) -> float:
        """All points."""
        return round(sum(self.points.values()), 2)


def grade_file(path: Path, *, timed: bool = True) -> Graded:
    """Grade a hand-in.

    Args:
        path: The file.
        timed: Whether limits of speed count; on a busy machine they had better not.
    """
    try:
        student, answers = read_hand_in(path)
    except (FuselabError, OSError) as error:
        return Graded(path.name, "", problem=str(error))
    points: dict[str, float] = {}
    reasons: dict[str, str] = {}
    waiting = []
    for name, text in answers.items():
        try:
            task = find_task(name)
        except FuselabError as error:
            reasons[name] = str(error)
            continue
        try:
            verdict = judge_for_points(task, text, timed=timed)
        except (RuntimeError, OSError) as error:  # the class goes on without it
            reasons[name] = str(error)
            waiting.append(name)
            continue
        points[name] = round(task.points * verdict.score, 2)
        if not verdict.ok:
            reasons[name] = verdict.reason
    problem = f"not judged, grade it again: {', '.join(waiting)}" if waiting else ""
    return Graded(path.name, student, points, reasons, problem)


def grade_folder(folder: Path, *, timed: bool = True) -> list[Graded]:
    """Grade every ``.json`` file of a folder, in order of names."""
    return [grade_file(path, timed=timed) for path in sorted(folder.glob("*.json"))]


def as_csv(graded: Sequence[Graded], chosen: Sequence[Lab] = ()) -> str:
    """Return the points as a table, a line a hand-in.

    Args:
        graded: The hand-ins.
        chosen: Whose tasks are columns; those of which somebody has answered one if none are given.
    """
    answered = {name for each in graded for name in (*each.points, *each.reasons)}
    asked = chosen or [lab for lab in labs() if any(task.name in answered for task in lab.tasks)]
    columns = [task.name for lab in asked for task in lab.tasks]
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["file", "student", *columns, "total", "note"])
    for each in graded:
        cells = [_safe(each.file), _safe(each.student)]
        # What was answered and not judged is no 0.
        none = {name: "" for name in each.reasons if name not in each.points}
        cells += [none.get(name, f"{each.points.get(name, 0):g}") for name in columns]
        writer.writerow([*cells, f"{each.total:g}", _safe(each.problem)])
    return out.getvalue()


def _safe(text: str) -> str:
    """Return a cell that no spreadsheet takes for a formula."""
    return f"'{text}" if text[:1] in "=+-@\t\r" and text else text


__all__ = ["Graded", "as_csv", "grade_file", "grade_folder"]
