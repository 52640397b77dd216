"""The time of each line of a kernel in every form: sentence, terminal, card, editor."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from fusec.timing.line_counts import LineCount, LineCounts
from fuselab.display.line_counts import counted_text, packed_shares, said_of
from fuselab.display.pages.counters import count_lines_of, line_rows
from fuselab.panel import workbench
from fuselab.panel.widgets.linking import same_lines
from fuselab.session.cell_options import CellOptions, Frontend
from fuselab.session.fused_cell import FusedCell
from fuselab.session.line_views import seen_shares
from fuselab.session.session import Session
from support.panel_fake import FakeCell

WAITS = LineCount(0.6, "waits for memory", 4096.0, float(1 << 20))


@pytest.fixture(scope="module")
def cell() -> FusedCell:
    torch._dynamo.reset()
    session = Session({"F": F, "torch": torch, "x": torch.rand(64, 256)})
    made, program = session.prepare("y = F.gelu(x)\nz = y.softmax(-1)", CellOptions(), Frontend())
    session.run(made, program)
    made.update(seconds=0.05)
    return made


def counted(cell: Any) -> LineCounts:
    """Pretend that a line of the cell's second line took most of the time."""
    (kernel,) = cell.kernels.values()
    lines = {place[0].line: n for n, place in kernel.generated.origins.items() if place}
    found = {lines[2]: LineCount(0.3), lines[3]: WAITS}
    return LineCounts(kernel.source, found, 1000, "the clock, on one thread")


def test_a_sentence(cell):
    found = counted(cell)
    assert re.fullmatch(
        r"time of each line: line \d+ 60%, line \d+ 30%, outside of them 10% "
        r"\(seen 1,000 times by the clock, on one thread\); "
        r"one that waits for memory waits for what a line before it loads",
        said_of(found),
    )
    assert said_of(LineCounts("", missing="a reason")) == (
        "time of each line: not available, because a reason"
    )


def test_every_form_of_a_result_has_the_shares(cell):
    (name,) = cell.kernels
    cell.line_counts[name] = found = counted(cell)
    try:
        page, text = cell._repr_mimebundle_()["text/html"], cell.text()
        assert "time of each line" in page
        assert "60% of the time, mostly waits for memory, 4.10 k instructions of warps, " in page
        assert "time of each line" in text
        row = next(line for line in counted_text(found, "cpp") if "60%" in line)
        assert "waits for memory" in row
        # The cell's own lines have the shares that were seen, not those that were reckoned.
        shares = {view.number: view.time for view in cell.summary().lines}
        assert shares[3] == pytest.approx(2 / 3)
        assert shares[2] == pytest.approx(1 / 3)
    finally:
        cell.line_counts.clear()
    assert "time of each line" not in cell.text()


def test_another_text_has_none(cell):
    (name,) = cell.kernels
    (kernel,) = cell.kernels.values()
    found = replace(counted(cell), text="another")
    assert seen_shares(kernel, found) == {}
    cell.line_counts[name] = found
    try:
        assert "time of each line" not in cell.text()
    finally:
        cell.line_counts.clear()


def test_rows_of_the_costly_lines(cell):
    rows = line_rows(counted(cell))
    assert [row[1] for row in rows] == ["60%", "30%"]
    assert (
        rows[0][2] == "mostly waits for memory, 4.10 k instructions of warps, 1.00 MiB asked of L2"
    )


def test_shares_follow_lines_that_stay():
    found = LineCounts("a\nb\nc\n", {2: LineCount(0.5), 3: LineCount(0.001)}, 100, "the clock")
    assert packed_shares(found, same_lines(found.text, found.text)) == "2:0.500:50%:50% of the time"
    assert packed_shares(found, same_lines(found.text, "new\na\nb\nc\n")).startswith("3:0.500:")
    assert packed_shares(found, same_lines(found.text, "a\nB\nc\n")) == ""


def test_the_panel_says_why_not():
    panel = workbench(FakeCell())
    panel._repr_mimebundle_()
    assert panel.wait(60)
    panel.kernels.lines.button.click()
    assert panel.wait(60)
    assert "not available, because no compiled graph has it" in panel.kernels.lines.said.value
    assert panel.kernels.editor.costs == ""
    panel.close()


def test_the_panel_shows_them_beside_the_lines(cell):
    panel = workbench(cell)
    panel._repr_mimebundle_()
    assert panel.wait(60)
    (name,) = cell.kernels
    cell.line_counts[name] = counted(cell)
    try:
        panel.kernels.refresh()
        assert ":0.600:60%:60% of the time" in panel.kernels.editor.costs
        assert "60%" in panel.kernels.lines.said.value
    finally:
        cell.line_counts.clear()
        panel.close()


def test_a_real_kernel_is_seen_or_a_reason_is_said(cell):
    (name,) = cell.kernels
    with cell.lock:
        found = count_lines_of(cell, name)
    assert found.lines or found.missing
    assert cell.line_counts.pop(name) is found
