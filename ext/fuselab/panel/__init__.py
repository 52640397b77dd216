"""The live panel of a fused cell: see, edit, check and tune its kernels.

A file a tab (``kernels``, ``timings``, ``tuning``); what they share is in ``bench``; work runs
on the thread of ``worker``; ``editor`` is the only part with JavaScript of its own.
"""

from __future__ import annotations

from .bench import PanelCell
from .workbench import Workbench

__all__ = ["PanelCell", "Workbench", "workbench"]


def workbench(cell: PanelCell) -> Workbench:
    """Return the live panel of a fused cell; nothing runs until the user asks for it.

    Args:
        cell: A ``FusedCell``, or anything with what ``PanelCell`` lists.
    """
    return Workbench(cell)
