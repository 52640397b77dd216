"""The judge as a server of the Model Context Protocol, for kernels that a model writes.

``python -m fuselab.judge.server`` speaks the protocol on its standard input and output; it needs
``pip install fuselab[mcp]``.  It offers ``list_tasks``, ``show_task``, ``judge_answer`` and
``next_hint`` over the tasks of a file (``--tasks FILE``), or with ``python -m fuselab.labs serve``
over the labs'.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib import import_module
from typing import Any

from fuselab.errors import NotJudged
from fuselab.judge.engine import judge
from fuselab.judge.task import CppTask, FunctionTask, Task, TensorTask, TritonTask


def described(task: Task) -> dict[str, Any]:
    """Return a task as whoever answers it sees it; not what is right."""
    found: dict[str, Any] = {
        "name": task.name,
        "title": task.title,
        "defines": task.entry,
        "start": task.start.strip(),
        "language": _language(task),
    }
    if isinstance(task, CppTask):
        found["declaration"] = task.declaration
    if isinstance(task, FunctionTask) and task.forbids:
        found["may_not_use"] = list(task.forbids)
    if isinstance(task, TensorTask):
        limits = {name: value for name, value in asdict(task.limits).items() if value is not None}
        found["limits"] = limits
    return found


def _language(task: Task) -> str:
    if isinstance(task, CppTask):
        return "C++"
    return "Python with Triton" if isinstance(task, TritonTask) else "Python"


class Desk:
    """What the server offers, over some tasks.

    Attributes:
        tasks: By name.
    """

    def __init__(self, tasks: Mapping[str, Task]) -> None:
        self.tasks = tasks
        self._hints: dict[str, int] = {}

    def list_tasks(self) -> str:
        """List the tasks: name and title, a line each."""
        return "\n".join(f"{task.name}: {task.title}" for task in self.tasks.values())

    def show_task(self, name: str) -> str:
        """Show what a task asks for, as JSON: what to define, how to begin, the limits."""
        return self._with(name, lambda task: json.dumps(described(task)))

    def judge_answer(self, name: str, answer: str) -> str:
        """Judge an answer's source; the verdict as JSON: ok, score, what is wrong first."""

        def verdict(task: Task) -> str:
            try:
                return json.dumps(judge(task, answer).data())
            except NotJudged as error:
                return json.dumps({"error": str(error)})

        return self._with(name, verdict)

    def next_hint(self, name: str) -> str:
        """Give the next hint about a task; there are three."""

        def hint(task: Task) -> str:
            number = min(self._hints.get(name, 0) + 1, len(task.hints))
            self._hints[name] = number
            return task.hints[number - 1] if task.hints else "there are no hints about it"

        return self._with(name, hint)

    def _with(self, name: str, do: Any) -> str:
        task = self.tasks.get(name)
        if task is None:
            return json.dumps({"error": f"no task {name!r}; there are {', '.join(self.tasks)}"})
        return str(do(task))


def serve(desk: Desk) -> None:
    """Serve on standard input and output until the other side is gone.

    Raises:
        ModuleNotFoundError: ``mcp`` is not installed.
    """
    # By name: the two lines of releases have different modules, and types of their own.
    make: Any = getattr(import_module("mcp.server"), "MCPServer", None)  # from 2.0 on
    if make is None:
        make = import_module("mcp.server.fastmcp").FastMCP
    server = make("fuselab-judge")
    for tool in (desk.list_tasks, desk.show_task, desk.judge_answer, desk.next_hint):
        server.tool()(tool)
    server.run()


def main(arguments: Sequence[str] | None = None, tasks: Mapping[str, Task] | None = None) -> int:
    """Serve; return 2 for a mistake in what was asked."""
    parser = argparse.ArgumentParser(prog="python -m fuselab.judge.server", description=__doc__)
    parser.add_argument("--tasks", help="a Python file with `tasks`", required=tasks is None)
    given = parser.parse_args(arguments)
    if given.tasks:
        from fuselab.judge.__main__ import load_tasks

        tasks = load_tasks(given.tasks)
    try:
        serve(Desk(tasks or {}))
    except ModuleNotFoundError as missing:
        if missing.name != "mcp" and not str(missing.name).startswith("mcp."):
            raise
        print("fuselab.judge.server needs mcp: pip install 'fuselab[mcp]'", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
