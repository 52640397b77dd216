"""What a lab is, and which there are."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from dataclasses import dataclass

from fuselab.errors import UnknownName
from fuselab.judge.task import Task
from fuselab.labs import content


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


@functools.cache
def labs() -> tuple[Lab, ...]:
    """Return every lab, in order."""
    found_modules = pkgutil.iter_modules(content.__path__)
    modules = sorted(m.name for m in found_modules if m.name.startswith("lab"))
    found = [importlib.import_module(f"{content.__name__}.{name}").LAB for name in modules]
    return tuple(sorted(found, key=lambda lab: lab.number))


def find_task(name: str) -> Task:
    """Return a task by its name.

    Raises:
        UnknownName: There is none.
    """
    known = {task.name: task for lab in labs() for task in lab.tasks}
    if name not in known:
        raise UnknownName("task", name, known, "no lab is installed")
    return known[name]


def lab_of(task: str) -> Lab:
    """Return the lab that a task belongs to."""
    find_task(task)
    return next(lab for lab in labs() if any(each.name == task for each in lab.tasks))


__all__ = ["Lab", "find_task", "lab_of", "labs"]
