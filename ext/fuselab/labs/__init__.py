"""Teaching labs: tasks, hints, progress, hand-ins, grading, and the notebooks made of one source.

A lab is a ``Lab``, a file of ``content`` (its tasks, with what answers are compared with), and a
text of ``notebooks/labs/source`` (jupytext's percent format, with the solutions in it).
``%%task NAME`` judges a cell, ``%hint``, ``%progress`` and ``%hand_in`` do what they say;
``python -m fuselab.labs grade FOLDER`` judges a class's hand-ins anew, ``build`` makes notebooks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fuselab.labs.progress import points
    from fuselab.labs.triton_views import machine_code, programs

_HOMES = {"points": "progress", "machine_code": "triton_views", "programs": "triton_views"}

__all__ = ["machine_code", "points", "programs"]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    if name not in _HOMES:
        raise AttributeError(f"module 'fuselab.labs' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"fuselab.labs.{_HOMES[name]}"), name)
