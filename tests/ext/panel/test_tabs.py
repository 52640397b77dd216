"""The late tabs of the panel over a real cell, without a browser."""

from __future__ import annotations

import html
import re
import threading
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F

import fuselab
import fuselab.display.pages.subjects
from fusec.report import GraphBreak
from fusec.tuning_report import TuningRun
from fuselab.display import noise
from fuselab.panel import BelowResult, Workbench, workbench
from fuselab.panel.attempts import attempt, bars, label_of
from fuselab.panel.tabs.guards import guards_html
from fuselab.panel.tabs.sweep import values_of
from fuselab.panel.widgets import markup
from fuselab.panel.widgets.linking import cell_lines, links_of, packed
from support.panel_fake import CPP, FakeCell, FakeHost, timing


def function(x: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = F.gelu(x)
    z = F.layer_norm(y, (32,))
    return z @ weight, (y * z).sum(0)


@pytest.fixture(scope="module")
def panel() -> Any:
    torch._dynamo.reset()
    fused = fuselab.fuse(function)
    fused(torch.randn(16, 32), torch.randn(32, 8))
    panel = workbench(fused.result)
    panel._repr_mimebundle_()
    settle(panel)
    yield panel
    panel.close()


@pytest.fixture
def fake() -> Any:
    panel = workbench(FakeCell())
    panel._repr_mimebundle_()
    settle(panel)
    yield panel
    panel.close()


def settle(panel: Workbench) -> None:
    assert panel.wait(60), "the worker did not come to rest"


def open_tab(panel: Workbench, part: object) -> Any:
    panel.tabs.selected_index = [p is part for p in panel.parts].index(True)
    settle(panel)
    return part


def test_tabs_are_made_when_opened() -> None:
    panel = workbench(FakeCell())
    panel._repr_mimebundle_()
    late = (*panel.parts[3:], panel.tab("Timings").sweep)
    assert not any(part.made or part.widget.children for part in late)
    for part in panel.parts:
        open_tab(panel, part)
    assert all(part.made for part in late)
    assert panel.bench.problem is None, "a cell without graphs has tabs, too"
    children = panel.tab("Fusion").widget.children
    open_tab(panel, panel.tab("Fusion"))
    assert panel.tab("Fusion").widget.children is children
    panel.close()


def test_a_problem_stays_in_the_tab_that_it_is_about(fake: Any) -> None:
    open_tab(fake, fake.tab("Stages"))
    fake.bench.do("Saving", lambda: 1 // 0, "save")
    settle(fake)
    assert "division" in fake.tab("Stages").note.value
    open_tab(fake, fake.tab("Numerics"))
    assert "division" not in fake.tab("Numerics").found.value
    assert fake.bench.problem is None


def test_static_form_of_a_panel_is_the_result(panel: Workbench) -> None:
    bundle = panel._repr_mimebundle_()
    (text,) = [k.source for name, k in panel.bench.facts.kernels.items() if "gelu" in name]
    shown = html.unescape(re.sub("<[^>]+>", "", bundle["text/html"]))
    assert all(line in shown for line in text.splitlines()), "the kernel's text as well"
    assert "data:image/png" in bundle["text/html"]
    assert "layer_norm" in bundle["text/plain"]


def test_below_its_result_a_panel_says_nothing_twice(panel: Workbench) -> None:
    bundle = BelowResult(panel)._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in bundle
    assert len(bundle["text/html"]) < 300
    assert "the result is above" in bundle["text/plain"]


def test_looks_are_shared_between_panels() -> None:
    def held(panel: Workbench) -> set[str]:
        found, todo = set(), [panel]
        while todo:
            widget = todo.pop()
            found |= {widget.layout.model_id}
            found |= {widget.style.model_id} if hasattr(widget, "style") else set()
            todo += getattr(widget, "children", ())
        return found

    first, second = workbench(FakeCell()), workbench(FakeCell())
    for panel in (first, second):
        for part in panel.parts:
            open_tab(panel, part)
    assert held(first) == held(second)
    assert len(held(first)) < 30
    first.close()
    layouts = [widget.layout for widget in second.kernels.widget.children]
    assert all(layout.comm is not None for layout in layouts), "the other panel needs them"
    second.close()


# --- fusion --------------------------------------------------------------------------------


def test_fusion_explains_the_two_that_are_picked(panel: Workbench) -> None:
    tab = open_tab(panel, panel.tab("Fusion"))
    names = {node.label: node.name for node in tab.view.before.nodes}
    assert "4 computations in 2 kernels" in tab.head.value
    tab.pick(f"op:{names['gelu']}")
    assert "Pick another one" in tab.reason.value
    assert tab.apart.disabled
    assert tab.together.disabled
    tab.pick(f"op:{names['layer_norm']}")
    assert "share the kernel" in tab.reason.value
    assert (tab.apart.disabled, tab.together.disabled) == (False, True)
    assert tab.picture.text.count('aria-pressed="true"') == 2
    tab.pick(f"op:{names['aten.mm']}")  # the oldest gives way
    assert tab.picked == [names["layer_norm"], names["aten.mm"]]
    assert "ATen" in tab.reason.value
    assert tab.apart.disabled
    assert tab.together.disabled, "a call of ATen cannot be joined"
    tab.pick(f"op:{names['aten.mm']}")
    tab.pick(f"op:{names['gelu']}")
    tab.apart.click()
    settle(panel)
    assert "3 kernels instead of 2" in tab.outcome.value
    assert "same results" in tab.outcome.value
    assert panel.bench.problem is None


def test_a_schedule_that_was_tried_is_put_in_use_and_taken_back() -> None:
    torch._dynamo.reset()
    fused = fuselab.fuse(function)
    given = torch.randn(16, 32), torch.randn(32, 8)
    fused(*given)
    panel = workbench(fused.result)
    panel._repr_mimebundle_()
    tab = open_tab(panel, panel.tab("Fusion"))
    assert (tab.use.disabled, tab.back.disabled) == (True, True)
    names = {node.label: node.name for node in tab.view.before.nodes}
    tab.pick(f"op:{names['gelu']}")
    tab.pick(f"op:{names['layer_norm']}")
    tab.apart.click()
    settle(panel)
    assert not tab.use.disabled
    tab.use.click()
    settle(panel)
    assert panel.bench.problem is None
    assert "3 kernels in use, checked against eager" in tab.outcome.value
    assert "gelu and layer_norm apart" in tab.rules.value
    assert "%%fuse --apart gelu:layer_norm" in tab.rules.value
    assert "in 3 kernels" in tab.head.value
    assert len(panel.kernels.choice.options) == 3
    assert (tab.use.disabled, tab.back.disabled) == (True, False)
    # The next run is the cell's own, on other numbers and at another size.
    for rows in (16, 24):
        x = torch.randn(rows, 32)
        for mine, plain in zip(fused(x, given[1]), function(x, given[1]), strict=True):
            torch.testing.assert_close(mine, plain, rtol=1e-4, atol=1e-4)
    assert len(fused.result.kernels) == 6, "what is compiled later follows it"
    page = fuselab.display.pages.subjects.fusion_of(fused.result)
    assert "In use: gelu and layer_norm apart" in page.text
    tab.back.click()
    settle(panel)
    assert tab.rules.value == ""
    assert "in 2 kernels" in tab.head.value
    assert len(fused.result.kernels) == 4
    panel.close()


def test_a_schedule_that_is_wrong_is_not_used(
    panel: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fusec.compiled.graph import CompiledGraph
    from fusec.report import Verdict

    tab = open_tab(panel, panel.tab("Fusion"))
    names = {node.label: node.name for node in tab.view.before.nodes}
    tab.picked = [names["gelu"], names["layer_norm"]]
    tab._show()
    tab.apart.click()
    settle(panel)
    wrong = Verdict(False, "wrong", "out[3] is off")
    monkeypatch.setattr(CompiledGraph, "verify", lambda self: wrong)
    tab.use.click()
    settle(panel)
    assert "out[3] is off" in tab.outcome.value
    assert len(panel.bench.facts.kernels) == 2
    assert tab.rules.value == ""


def test_what_a_pass_is_worth() -> None:
    def twice(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(F.gelu(x * 2), -1) + torch.sin(x * 2)

    torch._dynamo.reset()
    fused = fuselab.fuse(twice)
    fused(torch.randn(16, 32))
    panel = workbench(fused.result)
    panel._repr_mimebundle_()
    tab = open_tab(panel, panel.tab("Fusion"))
    assert tab.passes.options == ("cse",)
    assert not tab.leave_out.disabled
    tab.leave_out.click()
    settle(panel)
    assert panel.bench.problem is None
    assert "without cse: " in tab.outcome.value
    assert "same results" in tab.outcome.value
    assert tab.use.disabled, "there is no schedule to put in use"
    page = fuselab.display.pages.subjects.stages_of(fused.result)
    assert "passes over the graph" in page.text
    panel.close()


def test_a_large_graph_is_drawn_around_a_kernel() -> None:
    def deep(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        for _ in range(35):
            x = torch.tanh(x @ weight) + 1
        return x

    torch._dynamo.reset()
    fused = fuselab.fuse(deep)
    fused(torch.randn(4, 8), torch.randn(8, 8))
    panel = workbench(fused.result)
    panel._repr_mimebundle_()
    tab = open_tab(panel, panel.tab("Fusion"))
    assert tab.around.layout.display is None
    assert len(tab.around.options) == 70
    assert re.findall(r"\((\d+ of \d+) steps\)", tab.picture.text) == ["24 of 108", "24 of 73"]
    assert tab.picture.text.count("<svg") == 2
    first = tab.picture.text
    tab.pick(f"at:{tab.around.options[40][1]}")
    assert tab.around.value == tab.around.options[40][1]
    assert tab.picture.text != first
    picks = [part.partition('"')[0] for part in tab.picture.text.split('data-pick="op:')[1:]]
    assert 4 <= len(picks) <= 24
    for name in [n for n in picks if tab.view.before.node(n).kind == "kernel"][:2]:
        tab.pick(f"op:{name}")
    assert "are apart" in tab.reason.value or "share" in tab.reason.value
    panel.close()


# --- stages --------------------------------------------------------------------------------


def test_stages_beside_each_other_and_alone(panel: Workbench, tmp_path: Path) -> None:
    tab = open_tab(panel, panel.tab("Stages"))
    assert "fuselab-beside" in tab.picture.text
    assert "data-link" in tab.picture.text
    tab.changes.value = True
    settle(panel)
    assert "fuselab-gone" in tab.picture.text
    tab.changes.value = False
    tab.right.value = ""
    tab.left.value = next(key for label, key in tab.left.options if "assembly" in label)
    settle(panel)
    assert "fuselab-beside" not in tab.picture.text
    assert "gelu_layer_norm" in tab.picture.text
    assert not tab.picture.html, "a long text is not saved with the notebook"
    assert "build" in tab.times.value
    tab.folder.value = str(tmp_path)
    tab.save.click()
    settle(panel)
    assert "Saved to" in tab.note.value
    assert next(tmp_path.rglob("repro.py")).is_file()


def test_a_stage_that_cannot_be_made_says_so(
    panel: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fusec.errors import CompilerNotFound

    tab = open_tab(panel, panel.tab("Stages"))

    def refuse(*_: object) -> str:
        raise CompilerNotFound("there is no compiler here")

    monkeypatch.setattr("fusec.targets.cpp.assembly.assembly", refuse)
    tab.right.value = ""
    tab.left.value = [key for label, key in tab.left.options if "assembly" in label][-1]
    settle(panel)
    assert "there is no compiler here" in tab.picture.text
    assert panel.bench.problem is None


def test_saving_where_nothing_can_be_written(panel: Workbench) -> None:
    tab = open_tab(panel, panel.tab("Stages"))
    tab.folder.value = "/proc/nope"
    tab.save.click()
    settle(panel)
    assert "did not work" in tab.note.value


# --- guards, numerics ----------------------------------------------------------------------


def test_guards_are_shown_with_their_lines(panel: Workbench) -> None:
    tab = open_tab(panel, panel.tab("Guards and breaks"))
    assert "x is a float32 tensor of 16 x 32 on cpu" in tab.text.value
    assert "y = F.gelu(x)" in tab.text.value
    assert "first call" in tab.text.value


def test_numerics_compares_and_traces(panel: Workbench) -> None:
    tab = open_tab(panel, panel.tab("Numerics"))
    tab.compare.click()
    settle(panel)
    assert "Every output is right" in tab.outputs.value
    tab.trace.click()
    settle(panel)
    assert "Line by line" in tab.found.value
    assert "z = F.layer_norm" in tab.found.value


# --- timings -------------------------------------------------------------------------------


def test_roofline_and_limit(panel: Workbench) -> None:
    tab = open_tab(panel, panel.tab("Timings"))
    tab.roofline.start_button.click()
    settle(panel)
    assert bytes(tab.roofline.plot.png[:4]) == b"\x89PNG"
    assert "GB/s" in tab.roofline.table.value
    assert "limit " in panel.head.value
    assert "the limit of this machine" in tab.table.value


def test_sweep_draws_every_size(panel: Workbench) -> None:
    tab = open_tab(panel, panel.tab("Timings")).sweep
    labels = [label for label, _ in tab.size.options]
    assert any("16" in label for label in labels)
    tab.size.value = next(n for n, label in enumerate(labels) if label.endswith("= 16"))
    tab.range.value = (8, 32)
    tab.button.click()
    settle(panel)
    assert [point.size for point in tab.points] == [8, 16, 32]
    assert bytes(tab.plot.png[:4]) == b"\x89PNG"
    assert tab.table.value.count("<tr>") == 4
    tab.size.value = next(n for n, label in enumerate(labels) if label.endswith("= 32"))
    tab.button.click()
    settle(panel)
    assert "captured for" in tab.table.value
    assert len(tab.points) > 1 or tab.plot.widget.layout.display == "none", "one is no picture"
    assert panel.bench.problem is None, "it is said below the sweep, and nowhere else"


def test_values_to_sweep() -> None:
    from fusec.inspect.sweep import SweptSize

    assert values_of(SweptSize(1000, (), ""))[-2:] == [1000, 2000]
    assert values_of(SweptSize(3, (), "")) == [3, 6]
    assert values_of(SweptSize(8, (), "")) == [2, 4, 8, 16]


# --- kernels: links, history ----------------------------------------------------------------


def test_links_are_packed_a_run_of_lines_each() -> None:
    links = {3: [2], 4: [2], 6: [2], 7: [2, 5], 8: [2, 5]}
    assert packed(links) == "3-4:2 6:2 7-8:2,5"
    assert packed({}) == ""


def test_links_follow_lines_through_an_edit(panel: Workbench) -> None:
    kernel = next(iter(panel.bench.facts.kernels.values()))
    own = kernel.generated.text
    links = links_of(kernel, own)
    assert links
    line = next(iter(links))
    lines = own.splitlines()
    lines.insert(line - 1, "// two")
    lines.insert(line - 1, "// lines more")
    edited = "\n".join(lines)
    assert links_of(kernel, edited)[line + 2] == links[line]
    assert line not in links_of(kernel, edited)
    assert links_of(kernel, "// nothing of it") == {}
    editor = panel.kernels.editor
    assert editor.links == packed(links)
    assert [t for _, t in editor.cell if "gelu" in str(t)] == ["y = F.gelu(x)"]


def test_a_cell_is_shown_as_its_gutter_has_it() -> None:
    cell = FakeCell()
    cell.plan = object()  # type: ignore[attr-defined]
    lines = cell_lines(cell, [])
    assert lines[:2] == [[1, "%%fuse"], [2, "y = F.gelu(x)"]]


def test_history_has_every_text_and_how_it_compares(fake: Workbench) -> None:
    tab, more = fake.kernels, fake.kernels.more
    more.open()
    assert more.history.disabled
    tab.tunables._controls["GRAIN"].value = 8
    settle(fake)
    tab.tunables._controls["GRAIN"].value = 16
    settle(fake)
    labels = [label for label, _ in more.history.options]
    assert len(labels) == 2
    assert "GRAIN=16: passed" in labels[0]
    assert "generated" in labels[0]
    assert bytes(more.plot.png[:4]) == b"\x89PNG"
    more.history.value = 1
    assert "GRAIN = 8;" in tab.editor.text
    assert "is in the editor" in tab.verdict.value
    more.changes.value = True
    settle(fake)
    assert "fuselab-new" in more.picture.text
    tab.revert.click()
    settle(fake)
    assert more.picture.text == "No difference."


def test_attempts_are_labeled_by_what_differs() -> None:
    assert label_of(CPP, CPP, 1) == "generated"
    assert label_of(CPP.replace("UNROLL = 2", "UNROLL = 4"), CPP, 1) == "UNROLL=4"
    assert label_of(CPP + "// more", CPP, 3) == "edit 3"
    from fusec.report import Verdict

    passed = Verdict(True, "passed", "fine", timing=timing(1.0), generated=timing(2.0))
    known = attempt([], CPP + "//", passed, CPP)
    known = attempt(known, CPP + "//", passed, CPP)
    known = attempt(known, "x", Verdict(False, "compile", "no"), CPP)
    assert [each.label for each in known] == ["edit 1", "edit 1", "edit 3"]
    assert "refused (compile)" in known[-1].line
    assert "2.0× faster than generated" in known[0].line
    assert [name for name, *_ in bars(known)] == ["edit 1"]
    assert bars([]) == []


# --- tuning --------------------------------------------------------------------------------


def test_a_point_of_a_search_is_put_in_use(fake: Workbench) -> None:
    kernel = fake.bench.facts.kernels["gelu_norm"]
    fake.kernels.tune.click()
    settle(fake)
    spots = fake.tuning.plot.picture.spots
    assert len(spots) == 29, "one of thirty failed"
    assert "STREAM" in spots[0][3]
    chosen = next(spot for spot in spots if "GRAIN=1 UNROLL=4" in spot[3])
    fake.tuning.pick(chosen[2])
    settle(fake)
    assert "GRAIN = 1;" in kernel.source
    assert "is in use" in fake.tuning.line.value
    marked = re.compile(r"<td[^>]*>(GRAIN=[^<]*) \(in use")
    assert marked.findall(fake.tuning.ranking.value) == [chosen[3].partition(":")[0]]
    for words in ("does not win", noise.UNCONFIRMED):
        assert words not in fake.tuning.ranking.value, "it was picked"
    squares = fake.tuning.heat.picture.spots
    assert len(squares) == 15, "a square for each pair of the two tunables with most values"
    square = next(spot for spot in squares if "GRAIN=2 UNROLL=1" in spot[3])
    fake.tuning.pick(square[2])
    settle(fake)
    assert "GRAIN = 2;" in kernel.source
    fake.tuning.pick(chosen[2])
    settle(fake)
    assert bytes(fake.tuning.outcome.png[:4]) == b"\x89PNG"
    assert "Best time with each value" in fake.tuning.ranking.value
    fake.tuning.pick("trial:999")
    settle(fake)
    assert "GRAIN = 1;" in kernel.source
    kernel.use(kernel.source.replace("return 0;", "return 0;  // an edit"))
    fake.tuning.refresh()
    assert not marked.search(fake.tuning.ranking.value), "the search knows nothing of an edit"


def test_who_picks_while_something_runs_is_answered(fake: Workbench) -> None:
    tab = open_tab(fake, fake.tuning)
    tab.start_or_stop()
    settle(fake)
    bench = fake.bench
    begun, release = threading.Event(), threading.Event()

    def long() -> None:
        begun.set()
        assert release.wait(60)

    bench.do("Measuring", long)
    assert begun.wait(60)
    tab.pick("trial:1")
    assert tab.line.value.startswith("Measuring … (then: Using GRAIN=")
    fake.kernels.start_check()
    assert "then: Using GRAIN=1 UNROLL=1 STREAM=0, Checking gelu_norm" in fake.kernels.verdict.value
    release.set()
    settle(fake)
    assert bench.doing == bench.waiting == ""

    # While a search runs: its own points, and what would have to wait for its end.
    cast(FakeHost, bench.facts.kernels["gelu_norm"].host).pause = 0.1
    said: list[str] = []

    def ask(run: TuningRun) -> None:
        if len(run.trials) == 2:
            tab.pick("trial:1")
            said.append(tab.line.value)
            fake.kernels.start_check()
            tab._show(run)
            said.append(tab.line.value)
            tab.start_or_stop()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tab, "_progress", lambda run, _turns: ask(run))
        tab.start_or_stop()
        settle(fake)
    assert said[0] == "gelu_norm: a point can be put in use once the search has ended"
    assert said[1].endswith("once the search has ended; then: Checking gelu_norm")
    assert "stopped" in tab.line.value
    assert "then:" not in tab.line.value


def test_what_did_not_work_is_shown_above_an_earlier_trace(fake: Any) -> None:
    tab = open_tab(fake, fake.tab("Numerics"))
    tab.traces = [("cell_3", "an earlier trace")]
    fake.bench.do("Comparing", lambda: 1 // 0)
    settle(fake)
    assert "division" in tab.found.value
    assert "an earlier trace" in tab.found.value


def test_a_field_of_text_stands_in_for_the_editor(fake: Any) -> None:
    """Where a page has ipywidgets' own widgets alone; its style hides the button elsewhere."""
    editor, place = fake.kernels.place.children
    assert "fuselab-without-scripts" in place._dom_classes
    (button,) = place.children
    button.click()
    (area,) = place.children
    assert area.value == editor.text
    name = fake.bench.selected
    area.value = editor.text + "// mine\n"
    assert fake.bench.draft(name).endswith("// mine\n")
    fake.kernels.start_check()
    settle(fake)
    assert fake.bench.checked[name].text.endswith("// mine\n")
    fake.kernels.start_revert()
    settle(fake)
    assert "// mine" not in area.value


def test_a_break_with_nothing_to_mend_is_no_alarm() -> None:
    cell = FakeCell()
    cell.breaks = (
        GraphBreak("backward() runs between two compiled parts", "nothing", None, expected=True),
        GraphBreak("a print", "leave it out", None),
    )
    text = guards_html(cell)
    quiet, alarm = text.index(markup.QUIET), text.index(markup.BAD)
    assert quiet < text.index("backward()") < alarm < text.index("a print")
    assert text.count(markup.BAD) == 1
