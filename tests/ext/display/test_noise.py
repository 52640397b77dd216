"""One rule for noise: noisy timings are made up, and no view contradicts another or itself."""

from __future__ import annotations

import functools
import html
import re
import tempfile
from dataclasses import replace
from unittest import mock

import torch
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from fusec.kernel import Kernel
from fusec.report import Timing, Verdict
from fusec.timing.limits import MeasuredLimits
from fusec.tuning_report import Trial, TuningRun
from fusec.verify.comparison.words import praise
from fuselab.display import noise, words
from fuselab.display.bounds import Traffic
from fuselab.display.noise import Pace
from fuselab.display.outcomes import TuningOutcome, trial_line
from fuselab.display.pages import limits
from fuselab.display.pages.limits import above_note, roofline_rows
from fuselab.display.pages.numerics import numerics_page
from fuselab.display.pages.timings import time_rows, timings_page
from fuselab.display.pages.tuning import effect_rows
from fuselab.display.plots import figures, search
from fuselab.display.plots.cell import cell_figure
from fuselab.display.plots.machine import RooflinePoint
from fuselab.display.plots.tuning import outcome_figure
from fuselab.panel.attempts import attempt
from fuselab.panel.context import CellFacts, Checked
from fuselab.panel.tabs.tuning import progress_line, ranking_table, search_note
from fuselab.panel.widgets import plain
from fuselab.panel.widgets.drawing import trial_words
from fuselab.panel.workbench import Workbench, head_line
from fuselab.session.cell_options import CellOptions, Frontend
from fuselab.session.fused_cell import FusedCell
from fuselab.session.session import Session
from support.cell_fake import FakeCompiler, output
from support.panel_fake import FakeCell

TIME = re.compile(r"\d (?:s|ms|µs|ns)\b")
SAID = re.compile(r"\d[\d.]*× (?:faster|slower)|the same|as fast as|not told apart")


@st.composite
def timings(draw: st.DrawFn, near: float = 1e-3) -> Timing:
    """Times whose spread is anything from none to several times the median."""
    median = near * draw(st.floats(0.8, 1.25) | st.floats(0.1, 10))
    below, above = draw(st.floats(0, 0.5)), draw(st.floats(0, 2))
    return Timing(median, median * (1 - below), median * (1 + above), 30, "interleaved")


def said(text: str) -> str:
    """Return what a view says of one pair of times."""
    every = (match[0].replace("as fast as", "the same") for match in SAID.finditer(text))
    found = {each.partition(" ")[2] for each in every}
    assert len(found) <= 1, text
    return found.pop() if found else ""


def in_figure(figure: object) -> str:
    from matplotlib.text import Text

    return " | ".join(t.get_text() for t in figure.findobj(Text) if t.get_text())  # type: ignore[attr-defined]


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # on a busy machine
@given(timings(), timings())
def test_the_rule(one: Timing, other: Timing) -> None:
    found = noise.pace(one, other)
    turned = {Pace.FASTER: Pace.SLOWER, Pace.SLOWER: Pace.FASTER}
    assert noise.pace(other, one) is turned.get(found, found)
    assert noise.pace(one, one) is Pace.SAME
    meet = one.low <= other.high and other.low <= one.high
    assert (found in turned) <= (not meet)
    if found is Pace.FASTER:
        assert one.median < other.median


def test_a_comment_does_not_make_a_kernel_slower() -> None:
    generated = Timing(1.00e-3, 0.95e-3, 1.10e-3, 30, "")
    commented = Timing(1.04e-3, 0.97e-3, 1.15e-3, 30, "")
    assert noise.against(commented, generated) == "the same"
    noisy = replace(commented, median=1.09e-3)
    assert noise.pace(noisy, generated) is Pace.UNSURE
    verdict = Verdict(True, "passed", "same", timing=noisy, generated=generated)
    assert "slower" not in words.time_line(verdict)


@settings(max_examples=12, deadline=None)
@given(timings(), timings(), timings(), timings(), timings())
def test_views_of_a_cell_agree(
    eager: Timing, fused: Timing, alone: Timing, edit: Timing, generated: Timing
) -> None:
    cell = _cell()
    cell.eager, cell.fused = eager, fused
    (kernel,) = cell.kernels.values()
    cell.kernel_times = {kernel.name: alone}
    verdict = Verdict(True, "passed", "same", timing=edit, generated=generated)
    kernel.last_verdict = verdict
    facts = CellFacts(cell.kernels, eager, fused, {}, cell.kernel_times, None)
    edits = [(kernel.name, generated, edit)]
    shown = [words.duration(time.median) for time in (eager, fused, alone)]
    wanted = said(noise.against(fused, eager))
    summary = cell.summary()
    views = [
        "; ".join(summary.facts),
        re.sub("<[^>]+>", "", html.unescape(head_line(cell.name, facts))),
        in_figure(figures.speed_figure(eager, fused)),
        in_figure(cell_figure(eager, fused)),
        timings_page(cell).text.splitlines()[0],
        next(row[2] for row in time_rows(facts) if row[0] == "fused, whole cell"),
    ]
    for view in views:
        assert said(view) == wanted, view
    wanted = said(noise.against(edit, generated))
    views = [
        attempt([], kernel.source, verdict, kernel.generated.text)[0].line,
        words.time_line(verdict).partition("checked in")[0],
        next(row[2] for row in time_rows(facts) if "text checked" in row[0]),
        in_figure(figures.edit_figure([("generated", generated), ("edited", edit)])),
        in_figure(figures.attempts_figure([("edited", edit, generated)])),
    ]
    for view in views:
        assert said(view) == wanted, view
    # Times of two runs do not stand side by side: a kernel has one, its checked text none.
    for view in (timings_page(cell).text, in_figure(cell_figure(eager, fused, edits=edits))):
        lines = [line for line in re.split(r"\n| \| ", view) if "text checked" in line]
        assert not [line for line in lines if TIME.search(line)], view
        for time in (edit, generated):
            text = words.duration(time.median)
            assert text in shown or not re.search(rf"\b{re.escape(text)}", view), view
    # A part that took longer than its whole is spoken of, and so is a noisy machine: once.
    for view in (cell.text(), cell.html(), timings_page(cell).text):
        flat = " ".join(view.split())
        longer = alone.median > fused.median
        assert flat.count("took longer than the whole cell") == longer
        loud = max(map(noise.spread, (eager, fused, alone))) >= noise.BUSY
        assert flat.count("his machine is busy") == loud


def visible(page: str) -> str:
    """Return what a page of HTML shows, in one line; of a table each cell is a word of its own."""
    shown = re.sub(r"<(style|script)\b.*?</\1>", " ", page, flags=re.DOTALL)
    return " ".join(html.unescape(re.sub("<[^>]+>", " ", shown)).split())


UNIT = r"([\d.]+ (?:s|ms|µs|ns))\b"
SIZE = r"([\d.]+ (?:B|KiB|MiB|GiB))\b"


ERROR = r"(NaN|\d[\d.]*(?:e-?\d+)?)"


@settings(max_examples=5, deadline=None, phases=[Phase.generate])  # a try takes half a second
@given(
    st.tuples(timings(), timings(), timings(), timings(near=3e-4)),
    st.integers(1 << 10, 1 << 28),
    st.tuples(st.floats(1e8, 1e12), st.floats(1e8, 1e12), st.floats(1e8, 1e13)),
    st.lists(st.floats(0, 1e-5), min_size=2, max_size=2),
)
def test_no_view_shows_two_figures_for_one_thing(
    times: tuple[Timing, ...], least: int, rates: tuple[float, ...], errors: list[float]
) -> None:
    """The card, a terminal, a shared file, each tab and page: a figure is what it is elsewhere."""
    eager, fused, alone, copy = times
    cell = _cell()
    (kernel,) = cell.kernels.values()
    kernel.last_verdict = None
    cell.eager, cell.fused, cell.kernel_times = eager, fused, {kernel.name: alone}
    cell.traffic = Traffic(5 * least, 2 * least, least, copy.median, copy.median, 0)
    cell._set_limit()
    outputs = tuple(output(value, name) for value, name in zip(errors, "yz", strict=True))
    cell.verdict = Verdict(True, "passed", "same", outputs=outputs)
    worst = words.error(max(errors))
    found = MeasuredLimits("cpu", *rates, "copies")
    bench = cell.workbench().bench
    bench.look()
    bench.changed()
    for part in cell.workbench().lazy:
        part.open()
    cell.workbench().tab("Numerics").draw()
    roofline = cell.workbench().tab("Timings").roofline
    roofline.open()
    roofline._found = found
    bench.changed()
    panel = [getattr(each, "value", "") for each in plain.below(cell.workbench())]
    alone_file = mock.patch.object(Kernel, "export", lambda _, path: path)
    with tempfile.TemporaryDirectory() as folder, alone_file:
        shared = cell.share(folder)[0].read_text(encoding="utf-8")
    this_machine = mock.patch.object(limits, "machine", return_value=found)
    with this_machine, mock.patch.object(type(cell), "measure_limit", lambda self: self.limit):
        page = limits.limits_page(cell)
    views = {
        "card": visible(cell.html()),
        "terminal": cell.text(),
        "saved page": visible(cell._repr_mimebundle_()["text/html"]),
        "shared": visible(shared),
        "plot": in_figure(cell_figure(eager, fused, limit=cell.limit)),
        "panel": visible(" | ".join(text for text in panel if isinstance(text, str))),
        "timings": timings_page(cell).text,
        "limits": page.text,
        "limits page": visible(page.html),
        "numerics": numerics_page(cell.name, cell.verdict, []).text,
        "numerics page": visible(numerics_page(cell.name, cell.verdict, []).html),
    }
    moved = kernel.generated.read_bytes + kernel.generated.written_bytes
    # The figure is that of the largest error, whichever output has it.
    of_worst = rf"float32 4096 x 1024 \[17, 3\] {worst}"
    one_figure = {
        rf"\beager(?:, whole cell)?,? {UNIT}": words.duration(eager.median),
        rf"\bfused(?:, whole cell)?,? {UNIT}": words.duration(fused.median),
        rf"\b{cell.name}: (?:takes )?{UNIT}": words.duration(fused.median),
        rf"\b{kernel.name}, alone {UNIT}": words.duration(alone.median),
        rf"\b(?:limit(?: here| of this machine)?|takes? at best) {UNIT}": words.duration(
            copy.median
        ),
        rf"\beager moves\W* {SIZE}": words.size(5 * least),
        rf"\bfused moves\W* {SIZE}": words.size(2 * least),
        rf"a copy of its {SIZE}": words.size(least),
        rf"(?:{kernel.name}|MiB;?) ([\d.]+ GB/s)": words.rate(moved, alone.median),
        rf"\berror (?:against eager )?{ERROR} \(": worst,
        rf"({of_worst})": f"float32 4096 x 1024 [17, 3] {worst}",
    }
    met = set()
    for name, view in views.items():
        flat = " ".join(view.split())
        for pattern, wanted in one_figure.items():
            known = set(re.findall(pattern, flat))
            assert known <= {wanted}, (name, pattern, known, wanted)
            met |= {(name, pattern)} if known else set()
        shares = re.findall(r"(\d+)% of the time", flat)
        assert not shares or sum(map(int, shares)) in (100, 200), (name, shares)
        quicker = noise.pace(fused, copy.median) is Pace.FASTER
        if eager.median < copy.median or quicker:  # then it is no limit
            assert not re.search(r"\blimit (?:here|of this|[\d.]+ .?s)", flat), (name, view)
    drawn = views["plot"].split(" | ")
    assert {words.duration(time.median) for time in (eager, fused)} <= {
        text.partition("  ")[0] for text in drawn
    }
    for name, view in views.items():
        least_met = {"plot": 0, "numerics": 1, "numerics page": 1, "saved page": 0}.get(name, 2)
        assert sum(each == name for each, _ in met) >= least_met, (name, view)


@settings(max_examples=50, deadline=None)
@given(timings(), st.floats(1e8, 1e12), st.floats(1e8, 1e12), st.floats(1e8, 1e13))
def test_no_share_of_the_machine_is_more_than_all_of_it(
    time: Timing, memory: float, cache: float, operations: float
) -> None:
    """The machine is timed in another run than the kernel, and perhaps in a worse moment."""
    found = MeasuredLimits("cpu", memory, cache, operations, "copies")
    point = RooflinePoint("k", 3 << 20, 4 << 20, time.median)
    rows = roofline_rows([point], found, {point.bytes: time.median / 8})
    assert rows[0][2] == "0.12"  # as the sentence above the table has it
    assert roofline_rows([point], found, {})[0][2] == ""
    for share in re.findall(r"([\d.]+)%", " ".join(rows[0])):
        assert float(share) <= 100
    assert bool(above_note(rows)) == ((3 << 20) / time.median > operations)


@st.composite
def searches(draw: st.DrawFn) -> TuningRun:
    times = draw(st.lists(st.none() | timings(), min_size=2, max_size=6))
    trials = tuple(
        Trial((("ROWS", 1 << n), ("UNROLL", n % 2 + 1)), t, "" if t else "does not build")
        for n, t in enumerate(times)
    )
    ran = [n for n, t in enumerate(times) if t is not None]
    best = draw(st.sampled_from(ran)) if ran else None
    stopped = draw(st.sampled_from(["", "budget", "finished"]))
    total = draw(st.integers(1, 9))  # a search may try more than it meant to
    eager = draw(st.none() | timings())
    whole = draw(st.booleans())
    return TuningRun("k", trials, best, total, eager, stopped, 1.0, eager_is_whole=whole)


def test_what_only_looked_faster_is_marked() -> None:
    start, quick = (Timing(t, 0.9 * t, 1.1 * t, 9, "m") for t in (4.0e-3, 1.0e-3))
    trials = tuple(Trial((("ROWS", n),), time) for n, time in enumerate((start, quick, start)))
    run = TuningRun("k", trials, 0, 3, None, "finished", 1.0)
    marks = {row["config"]: row["remark"] for row in TuningOutcome("k", run).rows()}
    assert marks == {"ROWS=0": "in use, start", "ROWS=1": noise.UNCONFIRMED, "ROWS=2": ""}
    assert f"ROWS=1 ({noise.UNCONFIRMED})" in ranking_table(run)
    figure = search.tuning_figure(run)
    assert noise.UNCONFIRMED in in_figure(figure)
    filled = [bars.lines[0].get_markerfacecolor() == "white" for bars in figure.axes[0].containers]
    assert filled == [False, True, False], "the trial that is not in use, hollow; then what is"
    assert noise.UNCONFIRMED in trial_words(run, 1)
    compared = outcome_figure(run)
    assert compared is not None
    assert f"ROWS=1, {noise.UNCONFIRMED}" in in_figure(compared)
    assert noise.unconfirmed(replace(run, best=1)) == frozenset()


def _slower_than_its_start() -> TuningRun:
    times = [Timing(t, t, t, 30, "interleaved") for t in (0.875e-3, 1e-3)]
    trials = tuple(Trial((("ROWS", n), ("UNROLL", n)), time) for n, time in enumerate(times, 1))
    return TuningRun("k", trials, 1, 1, None, "budget", 1.0)


@settings(max_examples=15, deadline=None)
@given(searches())
@example(_slower_than_its_start())
def test_views_of_a_search_agree(run: TuningRun) -> None:
    count = noise.progress(run)
    done, _, of = count.partition(" of ")
    assert int(done) <= int(of)
    outcome = TuningOutcome("k", run)
    figure = search.tuning_figure(run)
    drawn = in_figure(figure)
    for view in (outcome.note(), progress_line(run), drawn, trial_line(run)):
        assert count in view, view
    if run.best is None:
        return
    config = str(run.trials[run.best])
    marked = [row["config"] for row in outcome.rows() if "in use" in row["remark"]]
    assert marked == [config]
    table = html.unescape(ranking_table(run))
    word = "in use" if run.stopped else "best so far"
    compared = outcome_figure(run)
    below = " ".join(in_figure(compared).split()) if compared is not None else ""
    assert not below or f"{config}, {word}" in below
    assert re.findall(r"<td>([^<(]+) \(" + word, table) == [config]
    assert f"{word}: {config}" in drawn
    assert f"{word} {config}" in progress_line(run)
    # Nothing is called best that is slower than what it started from.
    first, own = run.trials[0].timing, run.trials[run.best].timing
    assert own is not None
    if first is not None and noise.pace(own, first) is not Pace.FASTER:
        assert "faster than before" not in outcome.note()
    for text in (outcome.note(), table if run.stopped else "", drawn if run.stopped else ""):
        assert not re.search(r"\bbest\b(?! so far)", text), text
    # What a point of the plot says of a configuration is what its row says.
    rows = dict(re.findall(r"<td>([A-Z]+=\d+(?: [A-Z]+=\d+)*)[^<]*</td><td class=n>([^<]*)", table))
    for index, trial in enumerate(run.trials):
        if trial.timing is not None and str(trial) in rows:
            remarks = re.search(rf"<td>{trial} \(([^)]*)\)</td>", table)
            doubtful_row = remarks is not None and noise.UNCONFIRMED in remarks[1]
            doubt = f" ({noise.UNCONFIRMED})" if doubtful_row else ""
            said = f"{trial}{doubt}: {rows[str(trial)]}; pick to use it"
            assert trial_words(run, index) == said
            marked_bar = rf"{trial}, (at the start, )?{noise.UNCONFIRMED}"
            assert not below or not doubt or re.search(marked_bar, below)
    doubtful = noise.unconfirmed(run)
    assert (noise.UNCONFIRMED in drawn) == bool(doubtful)
    hollow = [
        round(float(bars.lines[0].get_xdata()[n])) - 1
        for bars in figure.axes[0].containers
        for n in range(len(bars.lines[0].get_xdata()))
        if bars.lines[0].get_markerfacecolor() == "white"
    ]
    assert set(hollow) == set(doubtful)
    assert str(run.trials[run.best]) in rows
    used = dict(run.trials[run.best].values)
    for name, text, _ in effect_rows(run):
        assert re.findall(r"(\d+): [\d.]+ \S+ ◂", text) == [str(used[name])]


@settings(max_examples=10, deadline=None)
@given(searches(), timings())
def test_a_search_beside_its_cell_has_its_own_eager(run: TuningRun, eager: Timing) -> None:
    """The head, the card and the tab: two times of eager are said to be of two runs."""
    bundle = TuningOutcome("k", run)._repr_mimebundle_()
    views = {
        "card": visible(bundle["text/html"]),
        "terminal": " ".join(bundle["text/plain"].split()),
        "plot": in_figure(search.tuning_figure(run)),
        "tab": visible(search_note(run, None, eager)),
    }
    for name, view in views.items():
        bare = re.findall(rf"(?i)\beager(?:, whole cell)?:? {UNIT}", view)
        assert not bare, (name, view)
        own = re.findall(rf"(?i)\beager,? in the search's own run: {UNIT}", view)
        wanted = {words.duration(run.eager.median)} if run.eager is not None else set()
        if name == "tab" and wanted == {words.duration(eager.median)}:
            wanted = set()  # nothing to explain
        assert set(own) == wanted, (name, view)
        if name == "tab" and wanted:
            assert f"the cell's {words.duration(eager.median)} is of another run" in view


@functools.cache
def _cell() -> FusedCell:
    session = Session({"x": torch.ones(4)}, compiler=FakeCompiler())
    cell, program = session.prepare("y = x * 2\n", CellOptions(), Frontend())
    session.run(cell, program)
    return cell


@settings(max_examples=12, deadline=None)
@given(
    st.tuples(timings(), timings(), timings()),
    st.tuples(timings(), timings(), timings(), timings()),
    st.booleans(),
)
def test_a_check_beside_the_head_of_its_panel(
    known: tuple[Timing, ...], checked: tuple[Timing, ...], changed: bool
) -> None:
    """What a check says stands below the cell's own times, which are of another run."""
    panel = _panel()
    bench, (eager, fused, alone) = panel.bench, known
    name, kernel = bench.selected, bench.kernel
    assert kernel is not None
    own, generated, graph, beside = checked
    reason = praise((), own, generated)
    verdict = Verdict(True, "passed", reason, None, (), own, generated, graph, beside)
    text = kernel.source.replace("UNROLL = 2", "UNROLL = 4") if changed else kernel.source
    bench.facts = CellFacts(bench.facts.kernels, eager, fused, {}, {name: alone}, None)
    bench.drafts = {name: text} if changed else {}
    bench.checked = {name: Checked(text, verdict)}
    bench.attempts[name] = attempt([], text, verdict, kernel.generated.text)
    bench.changed()
    view = visible(panel.tab("Kernels").verdict.value)
    assert said(view) == said(noise.against(own, generated))
    # The head and the card have times of the same code: here is how two compare, and no time.
    assert not TIME.search(view), view
    (line,) = [line for line, _ in panel.tab("Kernels").more.history.options]
    assert not TIME.search(line)
    # Where nothing else was timed, the check's times are the only ones.
    bench.facts = CellFacts(bench.facts.kernels, None, None, {}, {}, None)
    bench.changed()
    view = visible(panel.tab("Kernels").verdict.value)
    for word, time in (("Kernel", own), ("generated", generated), ("graph", graph)):
        assert f"{word} {words.duration(time.median)}" in view


@functools.cache
def _panel() -> Workbench:
    cell = FakeCell()
    cell.graphs = [object()]
    panel = Workbench(cell)
    panel._repr_mimebundle_()
    assert panel.wait(60)
    panel.tab("Kernels").more.open()
    return panel
