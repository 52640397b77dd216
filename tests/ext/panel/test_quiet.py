"""What the panel does while a search measures: nothing that a page would see."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import fusec.timing.measure as measure
import fuselab
from fuselab.display.plots import figures as plots
from fuselab.display.plots.search import SearchPicture
from fuselab.panel import workbench
from fuselab.panel.tabs.tuning import Turns

pytestmark = pytest.mark.serial


def function(x: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(F.gelu(x), (256,))


def overlap(first: list[tuple[float, float]], second: list[tuple[float, float]]) -> list[Any]:
    return [(a, b) for a in first for b in second if a[0] < b[1] and b[0] < a[1]]


def test_nothing_is_drawn_or_sent_during_a_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of this panel, nor of another one that somebody opens a tab of meanwhile."""
    torch._dynamo.reset()
    cells = []
    for rows in (512, 256):
        fused = fuselab.fuse(lambda x, rows=rows: function(x) * rows)
        fused(torch.randn(rows, 256))
        cells.append(fused.result)
    # On a busy machine drawing takes seconds; a search gives up on a lock that does not come back.
    monkeypatch.setattr(Turns, "PATIENCE", 60.0)
    searched, other = panels = [workbench(cell) for cell in cells]
    assert cells[0].lock is cells[1].lock, "the session has one lock"
    for panel in panels:
        panel._repr_mimebundle_()
        assert panel.wait(60)

    measured: list[tuple[float, float]] = []
    for kind in (measure._Clock, measure._WallClock, measure._EventClock):
        block = kind.block

        def timed(self: Any, *arguments: Any, block: Any = block) -> float:
            started = time.perf_counter()
            try:
                return float(block(self, *arguments))
            finally:
                measured.append((started, time.perf_counter()))

        monkeypatch.setattr(kind, "block", timed)
    drawn: list[tuple[float, float]] = []

    def watch(place: Any, name: str) -> None:
        real = getattr(place, name)

        def draw(*arguments: Any) -> Any:
            started = time.perf_counter()
            try:
                return real(*arguments)
            finally:
                drawn.append((started, time.perf_counter()))

        monkeypatch.setattr(place, name, draw)

    watch(plots, "figure_png")
    watch(SearchPicture, "draw")  # the search itself
    sent: list[tuple[float, float]] = []
    worker = f"fuselab-{searched.bench.cell.name}"

    def send(self: Any, *arguments: Any, **options: Any) -> None:
        if threading.current_thread().name == worker:
            sent.append((time.perf_counter(),) * 2)

    monkeypatch.setattr("ipywidgets.Widget._send", send)
    searched.tuning.open()
    searched.tuning.budget.value = 5
    searched.tuning.button.click()
    while not measured:
        time.sleep(0.01)
    for _ in range(3):  # somebody looks at the other panel
        time.sleep(0.3)
        for index in (1, 3, 0):
            other.tabs.selected_index = index
    assert searched.wait(60)
    assert other.wait(60)
    assert len(measured) > 20
    assert len(drawn) > 3
    assert len(sent) > 10
    assert overlap(measured, drawn) == []
    assert overlap(measured, sent) == []
    # The last ones draw the result; while it searches, at most four a second.
    assert len(drawn) <= 4 * (measured[-1][1] - measured[0][0]) + 6
    for panel in panels:
        panel.close()
