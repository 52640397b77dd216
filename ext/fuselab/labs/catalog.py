"""Which labs there are."""

from __future__ import annotations

import functools
import importlib
import pkgutil

from fuselab.errors import UnknownName
from fuselab.judge.task import Task
from fuselab.labs import content
from fuselab.labs.lab import Lab


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


__all__ = ["find_task", "labs"]
