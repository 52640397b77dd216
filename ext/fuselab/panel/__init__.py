"""The live panel of a fused cell: see, edit, check and tune its kernels.

A file a tab (``kernels``, ``timings``, ``tuning``); what they share is in ``bench``; work runs
on the thread of ``worker``; ``editor`` is the only part with JavaScript of its own.
"""

from __future__ import annotations

import weakref

from fuselab.panel.context import PanelCell
from fuselab.panel.workbench import BelowResult, Workbench

__all__ = ["BelowResult", "PanelCell", "Workbench", "prepare", "workbench"]

_panels: weakref.WeakKeyDictionary[PanelCell, Workbench] = weakref.WeakKeyDictionary()


def workbench(cell: PanelCell) -> Workbench:
    """Return the live panel of a fused cell; nothing runs until the user asks for it.

    A cell has one panel: asked for again (the cell ran again, say), it is shown a second time
    with what was typed into it, and without a second copy of everything.

    Args:
        cell: A ``FusedCell``, or anything with what ``PanelCell`` lists.
    """
    panel = _panels.get(cell)
    if panel is None or panel.closed:
        panel = _panels[cell] = Workbench(cell)
    return panel


def prepare(cell: PanelCell) -> Workbench | None:
    """Begin the panel of a cell that is about to run; None where it has one.

    The page reads the scripts and makes its part of the widgets while the cell is compiled; what
    is left for later are their values. Whoever runs the cell closes the panel if that fails.

    Args:
        cell: As for ``workbench``.
    """
    if cell in _panels and not _panels[cell].closed:
        return None
    panel = _panels[cell] = Workbench(cell, run=False)
    return panel
