"""Pages, layouts and texts of the panel's subjects: pure functions over real and made-up facts."""

from __future__ import annotations

import itertools
import random
import re
import xml.etree.ElementTree as ET
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import fusec
import fuselab
from fusec.errors import FusecError
from fusec.schedule.step_graph import fusion_view
from fuselab.display.pages import fusion, guards, numerics, stages, subjects
from fuselab.display.pages.page import static_table
from fuselab.display.svg.colors import LIVE, PRINT
from fuselab.display.svg.layout import BOX_GAP, lay_out
from fuselab.display.svg.step_graph import graph_svg
from fuselab.panel.widgets.code import MOST_LINES, cell_lines, diff_listing, listing
from support.html import Checker


def normed(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = F.gelu(x)
    z = F.layer_norm(y, (32,))
    return z @ weight, (y * z).sum(0)


@pytest.fixture(scope="module")
def cell() -> Any:
    torch._dynamo.reset()
    fused = fuselab.fuse(normed)
    fused(torch.randn(16, 32), torch.randn(32, 8))
    fused.result.summary()
    return fused.result


def parts(cell: Any) -> list[tuple[str, Any]]:
    from fusec.inspect.whatif import part_view

    return [(name, part_view(part)) for name, _, part in fusion.parts_of(cell)]


# --- layout --------------------------------------------------------------------------------


def random_graph(seed: int) -> tuple[dict[str, tuple[float, float]], list[tuple[str, str]]]:
    chance = random.Random(seed)
    names = [f"n{i}" for i in range(chance.randint(1, 24))]
    sizes = {name: (chance.uniform(30, 160), chance.uniform(18, 40)) for name in names}
    pairs = list(itertools.combinations(names, 2))
    edges = chance.sample(pairs, min(len(pairs), chance.randint(0, 30)))
    return sizes, edges + edges[:2]


@pytest.mark.parametrize("seed", range(30))
def test_layout_overlaps_nowhere_and_flows_down(seed: int) -> None:
    sizes, edges = random_graph(seed)
    layout = lay_out(sizes, edges)
    boxes = list(layout.boxes.items())
    for (_, a), (_, b) in itertools.combinations(boxes, 2):
        apart = a.x + a.width + BOX_GAP / 2 <= b.x or b.x + b.width + BOX_GAP / 2 <= a.x
        assert apart or a.y + a.height < b.y or b.y + b.height < a.y
    for name, box in boxes:
        assert box.x >= 0
        assert box.x + box.width <= layout.width
        assert box.y >= 0
        assert box.y + box.height <= layout.height
        assert (box.width, box.height) == sizes[name]
    for (source, target), wire in zip(edges, layout.wires, strict=True):
        heights = [y for _, y in wire.points]
        assert heights == sorted(heights)
        start, end = layout.boxes[source], layout.boxes[target]
        assert start.x <= wire.points[0][0] <= start.x + start.width
        assert end.x <= wire.points[-1][0] <= end.x + end.width


def test_nothing_to_lay_out() -> None:
    assert lay_out({}, []).width == 0


# --- fusion --------------------------------------------------------------------------------


def test_decisions_that_save_nothing_have_no_column_of_bytes() -> None:
    shown = fusion.decisions_html("computed once", [("exp → add", "", "two readers")])
    assert "computed once" in shown
    assert "saves" not in shown
    rows = [(f"a{n} → b", "4 B", "near") for n in range(fusion.MOST_ROWS + 2)]
    shown = fusion.decisions_html("together", rows)
    assert "saves" in shown
    assert f"{len(rows) - fusion.MOST_OPEN} more</summary>" in shown  # folded
    assert "and 2 more" in shown
    shown = fusion.decisions_html("together", rows[: fusion.MOST_OPEN + 2])
    assert "more" not in shown, "two rows are not worth folding"


def test_graph_is_xml_with_every_node_and_edge(cell: Any) -> None:
    ((_, view),) = parts(cell)
    svg = graph_svg(view.before, fusion.colors_of(view), PRINT, title="a <b>", prefix="op:")
    root = ET.fromstring(svg)
    picks = [e.get("data-pick") for e in root.iter() if e.get("data-pick")]
    computed = [n.name for n in view.before.nodes if n.kind in ("kernel", "extern")]
    assert picks == [f"op:{name}" for name in computed]
    text = " ".join(e.text or "" for e in root.iter())
    for fact in ("gelu", "layer_norm", "aten.mm", "2.00 KiB"):
        assert fact in text
    assert "var(" not in svg, "a static form has literal colors"
    assert "var(" in graph_svg(view.after, {}, LIVE, title="")


def test_kernels_have_colors_of_their_own(cell: Any) -> None:
    ((_, view),) = parts(cell)
    colors = fusion.colors_of(view)
    assert len(set(colors.values())) == len(colors) == 2


def test_fusion_page_says_the_same_in_text_and_html(cell: Any) -> None:
    page = subjects.fusion_of(cell)
    for fact in ("4 computations in 2 kernels", "1 call of ATen", "gelu → layer_norm"):
        assert fact in page.text
        assert fact in page._repr_mimebundle_()["text/html"]
    Checker().feed(page._repr_mimebundle_()["text/html"])
    assert max(map(len, page.text.splitlines())) < 160


# --- stages --------------------------------------------------------------------------------


def test_every_stage_can_be_read(cell: Any) -> None:
    views = stages.stage_views(cell)
    titles = [view.title for view in views]
    for wanted in ("cell source", "bytecode", "FX graph", "ATen graph", "before fusion", "C++"):
        assert any(wanted in title for title in titles), wanted
    assert len({view.key for view in views}) == len(views)
    for view in views:
        assert view.read().strip(), view.title
    assert "layer_norm" in stages.find_stage(views, "fx").read()
    assert stages.find_stage(views, "no such stage") is None
    shares = [share for _, _, share in stages.time_rows(cell)]
    assert sum(int(share.strip("<%")) for share in shares if not share.startswith("<")) == 100


def test_side_by_side_keeps_every_line_that_changed() -> None:
    left = "\n".join(f"line {n}" for n in range(30))
    right = left.replace("line 7\n", "").replace("line 20", "line twenty")
    rows = stages.side_by_side(left, right)
    changed = [row for row in rows if isinstance(row, stages.DiffRow) and row.changed]
    assert [(r.left, r.right) for r in changed] == [
        ((8, "line 7"), None),
        ((21, "line 20"), (20, "line twenty")),
    ]
    skipped = sum(row for row in rows if isinstance(row, int))
    shown = sum(isinstance(row, stages.DiffRow) and row.left is not None for row in rows)
    assert skipped + shown == 30
    assert stages.side_by_side("", "") == []
    assert [row.changed for row in stages.side_by_side("a", "a")] == [False]


def test_listing_escapes_links_and_cuts() -> None:
    text = "a = '<b>'  # line 3: x\n" + "b\n" * (2 * MOST_LINES)
    html = listing(text, "python", cell_lines(text))
    assert "<b>" not in html
    assert "data-link='3'" in html
    assert "more lines" in html
    assert html.count("fuselab-no") == MOST_LINES
    rows = stages.side_by_side("x < 1", "x < 2")
    assert "x < 1" not in diff_listing(rows, "text")
    assert "x &lt; 1" in diff_listing(rows, "text")
    for language in ("python", "cpp", "text"):
        assert listing("\n\nx\n", language, {}).count("fuselab-no") == 3


def test_saved_graph_runs_alone(cell: Any, tmp_path: Any) -> None:
    folder = cell.save(tmp_path)
    program = (folder / "graph_0" / "repro.py").read_text()
    space: dict[str, Any] = {"__name__": "repro"}
    exec(compile(program, "repro.py", "exec"), space)
    inputs = space["make_inputs"]()
    assert [tuple(t.shape) for t in inputs] == [(16, 32), (32, 8)]
    first, second = space["Repro"]()(*inputs)
    expected = normed(*inputs)
    torch.testing.assert_close(first, expected[0])
    torch.testing.assert_close(second, expected[1])
    assert "gelu" in (folder / "fusion.txt").read_text()


# --- guards, numerics ----------------------------------------------------------------------


def test_timeline_names_what_changed() -> None:
    torch._dynamo.reset()
    fused = fuselab.fuse(lambda x: (x * 2).sum(0))
    fused(torch.ones(8, 4))
    fused(torch.ones(5, 4))
    found = guards.timeline(fused.result)
    assert [each.graph for each in found] == ["graph 0", "graph 1"]
    assert found[0].why == "first call"
    assert "has 5 elements in dimension 0, not 8" in found[1].why
    assert "mark_dynamic" in found[1].hint
    page = guards.guards_page(fused.result)
    assert "compiled again 1 time" in page.text
    assert "mark_dynamic" in page.text
    Checker().feed(page._repr_mimebundle_()["text/html"])


def test_breaks_are_listed_with_their_lines() -> None:
    def broken(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        print("between")
        return y + 1

    torch._dynamo.reset()
    fused = fuselab.fuse(broken)
    fused(torch.ones(4))
    (row,) = guards.break_rows(fused.result.breaks, "")
    assert "print" in row[0]
    assert "capture stops at" in guards.guards_page(fused.result).text


def test_guards_of_the_compiler_itself_are_not_shown() -> None:
    torch._dynamo.reset()
    weight = torch.ones(4, 4, requires_grad=True)

    def step(x: torch.Tensor) -> None:
        loss = (x @ weight).tanh().sum()
        loss.backward()

    fused = fuselab.fuse(step)
    fused(torch.ones(2, 4))
    text = guards.guards_page(fused.result).text
    assert "backend.py" not in text


def test_breaks_and_guards_of_a_training_step() -> None:
    torch._dynamo.reset()
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.GELU())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x: torch.Tensor) -> None:
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()

    fused = fuselab.fuse(step)
    fused(torch.ones(2, 4))
    text = guards.guards_page(fused.result).text
    assert "drops the gradients" in text
    assert "backward() runs between two compiled parts" in text
    assert "model.1.approximate == 'none'" in text
    assert re.search(r"^ *param_groups\[0\]\['lr'\] == 0.1", text, re.M)
    assert not re.search(r"_modules|builtins|torch\._C|trace_autograd", text)


def test_numerics_page(cell: Any) -> None:
    page = subjects.numerics_of(cell)
    assert "against float64" in page.text
    assert re.search(r"line \d+: z = F.layer_norm", page.text)
    assert "aten.mm" in page.text
    Checker().feed(page._repr_mimebundle_()["text/html"])


def test_numerics_page_says_why_nothing_was_traced(
    monkeypatch: pytest.MonkeyPatch, cell: Any
) -> None:
    def refuse(part: object) -> None:
        raise FusecError("it draws random numbers")

    monkeypatch.setattr("fusec.inspect.numerics.trace_part", refuse)
    assert "it draws random numbers" in subjects.numerics_of(cell).text


def test_figures_in_words() -> None:
    assert numerics.relative(float("nan")) == "NaN or infinity"
    assert numerics.place((1, 2)) == "[1, 2]"
    assert numerics.place(()) == ""


# --- comparing -----------------------------------------------------------------------------


def test_two_cells_are_timed_together(cell: Any) -> None:
    times = subjects.time_interleaved({"one": cell, "two": cell}, 0.05)
    assert set(times) == {"one", "two"}
    assert "interleaved" in times["one"].method


def test_figures_stand_below_their_names_and_an_index_stays_whole() -> None:
    page = static_table(("output", "worst at", "error"), [("y", "[237, 439]", "9.5e-07")], 2)
    heads, cells = (
        re.findall(r"<th style=\"([^\"]*)", page),
        re.findall(r"<td style=\"([^\"]*)", page),
    )
    aligned = [[style.rpartition("text-align:")[2][:5] for style in row] for row in (heads, cells)]
    assert aligned[0] == aligned[1] == ["left;", "left;", "right"]
    assert "nowrap" in cells[1]


def test_a_step_alone_is_said_once(cell: Any) -> None:
    one = fuselab.fuse(torch.sin)
    one(torch.randn(64))
    page = subjects.timings_of(one.result)
    assert "alone" in page.text
    assert not re.search("step, alone|together", page.text)
    assert "together" in subjects.timings_of(cell).text


def test_a_loop_that_is_unrolled_is_counted_by_its_operators() -> None:
    """Twenty steps of a simulation filled the fusion page with ``roll #1 + roll #2 + ...``."""

    def steps(x: torch.Tensor) -> torch.Tensor:
        for _ in range(9):
            x = torch.tanh(x) * 0.5
        return x

    compiled = fusec.compile(steps, target="plain")
    compiled(torch.randn(6, 6))
    state = compiled.graphs[0].parts[0].state
    assert state.program is not None
    (row,) = fusion.kernel_rows(fusion_view(state.program, state.scheduled, ()))
    assert row[1] == "9 times tanh + 9 times mul"
