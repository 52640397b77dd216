"""What a lab is."""

from __future__ import annotations

import re
from dataclasses import dataclass

from fuselab.judge.task import Task

_TASK = re.compile(r"%%task\s+(\S+)[^\n]*\n?(.*)", re.DOTALL)


def task_in(text: str) -> tuple[str, str] | None:
    """Return the name and the answer of a cell's text that is a task; None if it is none."""
    match = _TASK.match(text)
    return (match[1], match[2]) if match else None


@dataclass(frozen=True)
class Lab:
    """A lab.

    Attributes:
        number: From 1.
        name: As its files are called: ``why_fuse``.
        title: For people.
        minutes: How long a student takes.
        tasks: In order; their names begin with ``labNN.``.
        needs: What it cannot do without: ``C++ compiler``; empty for nothing.
    """

    number: int
    name: str
    title: str
    minutes: int
    tasks: tuple[Task, ...]
    needs: tuple[str, ...] = ()

    @property
    def stem(self) -> str:
        """The name of its files: ``lab01_why_fuse``."""
        return f"lab{self.number:02}_{self.name}"


__all__ = ["Lab", "task_in"]
