"""Judges an answer: a function, a C++ kernel or a piece of Python, in one way wherever it is asked.

``judge(task, text)`` returns an ``AnswerVerdict``: what is wrong first, in words, and what was
measured, as data.  ``rules`` and ``cpp_rules`` refuse what no answer needs; the text then runs in a
process of its own (``answer_worker``, in a fork of the worker that checks edited kernels), which is
given inputs and never sees a reference value, a limit or this process.  Counts of kernels and bytes
are ``fusec.predict``'s; times are taken in turns with a baseline, which runs in another process.

``python -m fuselab.judge task.py answer.py`` judges a file; ``fuselab.judge.server`` is the same as
a server of the Model Context Protocol.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fuselab.judge.engine import judge
    from fuselab.judge.task import (
        CppTask,
        FunctionTask,
        Limits,
        PythonTask,
        Task,
        TritonTask,
    )
    from fuselab.judge.verdict import AnswerFinding, AnswerVerdict

_HOMES = {
    "judge": "engine",
    "CppTask": "task",
    "FunctionTask": "task",
    "Limits": "task",
    "PythonTask": "task",
    "Task": "task",
    "TritonTask": "task",
    "AnswerFinding": "verdict",
    "AnswerVerdict": "verdict",
}


def __getattr__(name: str) -> Any:
    """Import a public name from its module."""
    if name not in _HOMES:
        raise AttributeError(f"module 'fuselab.judge' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"fuselab.judge.{_HOMES[name]}"), name)


__all__ = [
    "AnswerFinding",
    "AnswerVerdict",
    "CppTask",
    "FunctionTask",
    "Limits",
    "PythonTask",
    "Task",
    "TritonTask",
    "judge",
]
