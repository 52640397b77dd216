"""``python -m fuselab.judge task.py answer.py``: judge a file.

The first file defines ``task``, or ``tasks`` of which ``--task NAME`` takes one.
"""

from __future__ import annotations

import argparse
import json
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

from fuselab.errors import NotJudged
from fuselab.judge.engine import judge
from fuselab.judge.task import Task


def main(arguments: Sequence[str] | None = None) -> int:
    """Judge; return 0 if it passes, 1 if not, 2 for no verdict or a mistake in what was asked."""
    parser = argparse.ArgumentParser(prog="python -m fuselab.judge", description=__doc__)
    parser.add_argument("task", help="a Python file that defines `task`")
    parser.add_argument("answer", type=Path, help="the file with the answer")
    parser.add_argument("--task", dest="name", help="which of the file's `tasks`")
    parser.add_argument("--json", action="store_true", help="print the verdict as JSON")
    parser.add_argument("--untimed", action="store_true", help="leave the limits of speed out")
    given = parser.parse_args(arguments)
    try:
        task = load_task(given.task, given.name)
        text = given.answer.read_text()
    except (OSError, LookupError) as error:
        print(f"fuselab.judge: {error}", file=sys.stderr)
        return 2
    try:
        verdict = judge(task, text, timed=not given.untimed)
    except NotJudged as error:
        print(f"fuselab.judge: {error}", file=sys.stderr)
        return 2
    print(json.dumps(verdict.data()) if given.json else verdict)
    return 0 if verdict.ok else 1


def load_tasks(place: str) -> dict[str, Task]:
    """Return the tasks of a Python file, by name: its ``task`` and its ``tasks``.

    Raises:
        OSError: There is no such file.
    """
    if not Path(place).is_file():
        raise FileNotFoundError(f"there is no file {place}")
    space = runpy.run_path(place)
    found = (space.get("task"), *space.get("tasks", ()))
    return {each.name: each for each in found if isinstance(each, Task)}


def load_task(place: str, name: str | None = None) -> Task:
    """Return a task of a file.

    Args:
        place: A Python file.
        name: Which of its tasks; not needed where there is one.

    Raises:
        LookupError: There is no such task.
        OSError: There is no such file.
    """
    found = load_tasks(place)
    if name is None and len(found) == 1:
        return next(iter(found.values()))
    if name not in found:
        known = ", ".join(found) or "none"
        raise LookupError(f"{place} has no task {name or '(name one)'}; it has: {known}")
    return found[name]


if __name__ == "__main__":
    sys.exit(main())
