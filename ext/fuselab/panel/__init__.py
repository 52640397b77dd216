"""The live panel of a fused cell: see, edit, check and tune its kernels.

A file a tab (``kernels``, ``timings``, ``tuning``); what they share is in ``bench``; work runs
on the thread of ``worker``; ``editor`` is the only part with JavaScript of its own.
"""

from __future__ import annotations

import weakref

from .bench import PanelCell
from .workbench import BelowResult, Workbench

__all__ = ["BelowResult", "PanelCell", "Workbench", "workbench"]

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
