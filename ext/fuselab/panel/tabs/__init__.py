"""The tabs of the panel, a file a tab, and the parts that stand in them.

A further tab is a ``LazyTab`` in a file of its own, imported here and written into ``TABS``; where
it stands there it stands in the panel, behind the kernels' tab, which is always made.
"""

from __future__ import annotations

from fuselab.panel.tabs.fusion import FusionTab
from fuselab.panel.tabs.guards import GuardsTab
from fuselab.panel.tabs.lazy import LazyTab
from fuselab.panel.tabs.numerics import NumericsTab
from fuselab.panel.tabs.stages import StagesTab
from fuselab.panel.tabs.timings import TimingsTab
from fuselab.panel.tabs.tuning import TuningTab

TABS: tuple[type[LazyTab], ...] = (
    TimingsTab,
    TuningTab,
    FusionTab,
    StagesTab,
    GuardsTab,
    NumericsTab,
)

__all__ = ["TABS"]
