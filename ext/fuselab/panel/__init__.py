"""The live panel of a fused cell: see, edit, check and tune its kernels.

A file a tab in ``tabs/`` (to add one: ``docs/recipes/add-a-tab.md``), what they are made of in
``widgets/``; what they share, and the rules that keep a panel calm, in ``context.py``; work runs on
the thread of ``worker.py``.

``%%fuse --panel`` begins its panel before the cell is compiled (``prepare``): the page reads the
scripts and makes its part of the widgets meanwhile, and what is left after the result are values.
A tab after the first is a ``LazyTab`` (``tabs/lazy.py``): its widgets are made when somebody opens
it, its texts and figures by the panel's worker; for the panel that somebody came near to last,
``tabs/prebuild.py`` does that before, tab by tab, while neither a cell nor the worker runs. The
worker draws with the cell's lock held, so never beside a measurement.

What a tab shows is written by a pure function in ``display/pages``, which ``%fuse_report --show``
and the saved report use as well. ``Picture`` is for figures, whatever can be picked (a graph, a
plot with places on it) and linked lines; the editor, it and the Copy button
(``widgets/copying.py``) are all the JavaScript there is, and a notebook holds it once
(``widgets/script.py``). Plain widgets come from ``widgets/plain.py``: those that look the same
share their layout and style, over all panels, which is half of what a saved notebook would hold.
``display/plots/search.py`` draws a running search on a copy of its axes. A panel below its cell's
result has no static form but a line; alone it has the result's.

What the tabs ask of the compiler: ``schedule/step_graph.py`` (a program as a graph, and why two
computations share a kernel or not), ``inspect/whatif.py`` (a part with other fusions, compared and
timed), ``timing/step_times.py`` (each kernel and call alone), ``inspect/reschedule.py`` (another
schedule in use, asked for in the words of ``schedule/rules.py``), ``inspect/sweep.py``,
``timing/limits.py``, ``inspect/numerics.py``, ``inspect/repro.py``.
"""

from __future__ import annotations

import weakref

from fuselab.panel.context import PanelCell
from fuselab.panel.workbench import BelowResult, Workbench

__all__ = ["BelowResult", "PanelCell", "Workbench", "look_again", "prepare", "workbench"]

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


def look_again(cell: PanelCell) -> None:
    """Let the panel of a cell that was measured anew show so, if it has one."""
    panel = _panels.get(cell)
    if panel is not None and not panel.closed:
        panel.live()
