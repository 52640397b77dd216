"""A result's static forms: what they say, that they are safe, and that they survive."""

import base64
import html
import html.parser
import re
import threading
from dataclasses import replace

import pytest
import torch

from fusec.call import native
from fusec.report import SourceLine, Timing, Verdict
from fuselab.display import listing, noise, words
from fuselab.display.outcomes import Table, TuningOutcome, trial_line
from fuselab.display.pages.timings import time_rows, timings_page
from fuselab.display.style import Style
from fuselab.display.summary import HEAD_LINES, KernelView
from fuselab.session import measured_cell
from fuselab.session.cell_options import CellOptions, Frontend
from fuselab.session.fused_cell import FusedCell
from fuselab.session.saving import MIME
from fuselab.session.session import Session
from support.cell_fake import FakeCompiler, output
from support.html import Checker
from support.panel_fake import CPP, FakeCell, timing


@pytest.fixture
def session():
    torch._dynamo.reset()
    space = {"torch": torch, "x": torch.arange(4.0), "__name__": "notebook_of_a_test"}
    return Session(space, compiler=FakeCompiler())


def fused(session, body="y = x * 2\nprint()\nz = y + 1\n", *, update=True, **options) -> FusedCell:
    cell, program = session.prepare(body, CellOptions(**options), Frontend())
    session.run(cell, program)
    if update:
        cell.update()
    return cell


def read(page: str) -> str:
    checker = Checker()
    checker.feed(page)
    checker.close()
    assert checker.open == []
    return " ".join("".join(checker.text).split())


class TestForms:
    def test_text(self, session, capsys):
        cell = fused(session)
        text = cell.text()
        first = text.splitlines()[0]
        assert first.startswith("cell_1: 2 kernels; 2 extern calls; 1 graph break; eager 19.7 ms")
        assert "(3.4× faster)" in first
        assert "checked, error against eager 2.4e-07 (allowed 1.3e-05)" in first
        assert "(eager's own 1.2e-07)" in first
        assert "gelu_norm    cpp" in text
        assert "row reduction over 4096 x 1024, lines 2-3" in text
        assert "extern  aten.mm (line 3) 2 times: a library does it better" in text
        assert "break   print() runs in Python (line 3: print(y)) – move it below" in text
        # The kernel itself, not what it includes and declares.
        assert 'extern "C" int gelu_norm(' in text
        assert "constexpr int64_t GRAIN" not in text
        assert max(len(line) for line in text.splitlines()[1:]) < 120

    def test_html_survives_an_untrusted_notebook(self, session):
        bundle = fused(session)._repr_mimebundle_()
        text = read(bundle["text/html"])
        assert "2 kernels · 2 extern calls · 1 graph break · eager 19.7 ms, fused 5.71 ms" in text
        hint = "to mend it: move it below"
        assert f"graph break line 3: print(y) – print() runs in Python; {hint}" in text
        assert "1 fusion made" not in text
        assert "2 fusions made, 2 not made, with reasons" in text
        assert "line 2" in text
        assert "cell 2" not in text
        assert "x is a float32 tensor of shape (4,)" in text
        assert "median of 30 interleaved blocks" in text

    def test_everything_is_escaped(self, session):
        body = "y = x * 2 # <script>alert(1)</script>\n"
        cell = fused(session, body)
        cell.notes.append("<img src=x onerror=alert(1)>")
        cell.verdict = Verdict(False, "wrong", "<b>bold</b>", outputs=(output(name="<i>o</i>"),))
        (graph,) = cell.graphs
        kernel = graph.kernels[0]
        kernel.use(CPP + "// </div><script>alert(2)</script>\n")
        page = cell._repr_mimebundle_()["text/html"]
        read(page)
        for harm in ("<script>alert", "<img src=x", "<b>bold", "<i>o"):
            assert harm not in page
        assert "&lt;script&gt;" in page

    def test_colors_read_on_their_background(self):
        lines = listing.highlight(CPP, "cpp") + listing.highlight(
            "@f\ndef g(): 'a' # b\n", "triton"
        )
        colors = set(re.findall(r"color:(#\w{3})", "".join(map(str, lines))))
        assert len(colors) >= 5
        assert all(contrast(color, "#fafafa") >= 4.5 for color in colors), colors
        for name, look in vars(Style).items():
            if name.startswith("_"):
                continue
            if name in ("td", "number", "source_text", "cost"):
                assert "color" not in look, "they have their row's"
                continue
            pair = [re.search(rf"(?:^|;){key}:(#\w+)", look) for key in ("background", "color")]
            assert all(pair), name
            assert contrast(pair[0][1], pair[1][1]) >= 4.5, name

    def test_highlighting_keeps_every_line(self):
        text = '"""a\nb\n\n"""\nx = 1\n'
        lines = listing.highlight(text, "triton")
        assert len(lines) == 5
        bare = [re.sub(r"<[^>]+>", "", str(line)) for line in lines]
        assert bare == ['"""a', "b", "", '"""', "x = 1"]
        for line in lines:
            for tag in ("span", "i"):
                assert line.count(f"<{tag}") == line.count(f"</{tag}>")

    def test_json(self, session):
        data = fused(session)._repr_mimebundle_()[MIME]
        assert data["name"] == "cell_1"
        assert [k["name"] for k in data["kernels"]] == ["gelu_norm", "gelu_norm_1"]
        assert data["kernels"][0]["head"] == CPP[CPP.index("extern") :].splitlines()[:HEAD_LINES]
        assert data["eager_ms"] == pytest.approx(19.68)
        assert data["max_error"] == 2.4e-7
        assert data["error_of"] == "out"
        assert data["ok"] is True
        assert data["fallbacks"] == []
        import json

        json.dumps(data, allow_nan=False)

    def test_png_only_if_timed(self, session):
        cell = fused(session, update=False)
        assert cell.png() is None
        assert "image/png" not in cell._repr_mimebundle_()
        cell.update()
        data = base64.b64decode(cell._repr_mimebundle_()["image/png"])
        assert data.startswith(b"\x89PNG")
        assert cell.png() is cell.png()

    def test_wrong_result_is_loud(self, session):
        cell = fused(session, "y = x * 2\n", update=False)
        cell.graphs[0].ok = False
        cell.update()
        assert "WRONG: out[17, 3] is 0.31 off" in cell.text().splitlines()[0]
        assert "WRONG" in read(cell.html())

    def test_white_space_survives_nbconvert(self, session):
        bs4 = pytest.importorskip("bs4")
        page = fused(session, "y = x * 2\n").html()
        through = str(bs4.BeautifulSoup(page, features="html.parser"))
        bare = html.unescape(re.sub(r"<[^>]+>", "", through))
        assert "      const float y = gelu(row[j]);" in bare

    def test_columns_of_a_listing_keep_an_empty_first_line(self, session):
        page = fused(session, "y = x * 2\n").html()
        page = page[page.index("<div data-kernel>") :]
        columns = re.findall(r"<td[^>]*><pre[^>]*>(.*?)</pre>", page, re.S)
        head, body = columns[:2], columns[2:]
        assert len(body) == 3
        # HTML drops the line break that follows the tag.
        assert all(column.startswith("\n") for column in columns)
        lines = [{column.count("\n") for column in piece} for piece in (head, body)]
        before = len(CPP[: CPP.index("extern")].splitlines())
        assert lines == [{before}, {len(CPP.splitlines()) - before}]

    def test_a_listing_is_not_many_times_its_text(self, session):
        """A notebook with ten results of long kernels must stay below a megabyte."""
        cell = fused(session, "y = x * 2\n")
        without = len(cell.html())
        cell.kernels["gelu_norm"].use(CPP + CPP.partition("extern")[2] * 4)
        text = "\n".join(cell.kernels["gelu_norm"].source.splitlines()[len(CPP.splitlines()) :])
        assert len(cell.html()) - without < 2.5 * len(text)

    def test_cell_lines_are_named_where_a_run_begins(self):
        place = SourceLine("<cell>", 2, "y = x")
        other = SourceLine("<cell>", 3, "z = '<y>'")
        origins = {1: (place,), 2: (place,), 4: (place, other), 5: (other,)}
        text = "a;\nb;\n\nc;\nd;\n"  # no entry: all of it is shown
        view = KernelView("k", "cpp", "generated", "", "", 0, None, text, origins)
        found = listing.kernel_listing(view, "<cell>")
        rows = [re.sub("<[^>]+>", "", row) for row in found.body.origins.split("\n")]
        assert rows == ["line 2", "│", "", "lines 2-3", "line 3"]
        assert "line 3: z = &#39;&lt;y&gt;&#39;" in found.body.origins
        assert found.body.numbers == "1\n2\n3\n4\n5"
        assert found.body.html.split("\n")[3].startswith("<span class='l2 l3'>")
        assert listing.kernel_listing(view, "<cell>", most=2).left_out == 3

    def test_long_kernel_is_cut_in_html_only(self, session):
        cell = fused(session, "y = x * 2\n")
        cell.kernels["gelu_norm"].use(
            CPP.replace("  return 0;", "// line\n" * 1000 + "  return 0;")
        )
        page = cell.html()
        body = CPP[CPP.index("extern") :].partition("  return 0;")[0]
        assert page.count("// line") == listing.MOST_LINES - len(body.splitlines())
        read(page)

    def test_nothing_to_fuse(self, session):
        cell = fused(session, "n = 3\n")
        head, said = cell.text().splitlines()
        assert head == "cell_1: no kernel"
        assert "nothing here computes with tensors" in said
        assert cell.eager is None
        assert cell.max_error is None
        read(cell.html())

    def test_pipeline_texts_and_repr(self, session):
        cell = fused(session)
        assert repr(cell) == "<FusedCell cell_1: gelu_norm, gelu_norm_1>"
        line = "compiled in 0.24 s: capture 0.20, emit 0.04"
        assert line in read(cell.html())
        assert f"\n  {line}\n" in cell.text()


def contrast(one: str, two: str) -> float:
    """WCAG's contrast ratio."""

    def luminance(color):
        color = color.lstrip("#")
        color = "".join(c * 2 for c in color) if len(color) == 3 else color
        parts = [int(color[i : i + 2], 16) / 255 for i in (0, 2, 4)]
        lin = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * lin[0] + 0.7152 * lin[1] + 0.0722 * lin[2]

    high, low = sorted((luminance(one), luminance(two)), reverse=True)
    return (high + 0.05) / (low + 0.05)


class TestMeasuring:
    def test_graphs_are_measured_not_the_cell(self, session):
        cell = fused(session, "y = x * 2\nn_runs = globals().get('n_runs', 0) + 1\n")
        assert session.namespace["n_runs"] == 1
        cell.update()
        cell.refresh()
        assert session.namespace["n_runs"] == 1

    def test_sum_over_graphs(self, session):
        cell = fused(session)
        assert cell.eager.median == pytest.approx(2 * 9.84e-3)
        assert "sum over 2 graphs" in cell.eager.method

    def test_times_are_of_calls_with_their_native_part(self, session, monkeypatch):
        order, built = [], False

        def await_types(seconds):
            order.append(seconds)
            return built or seconds > 0

        monkeypatch.setattr(native, "await_types", await_types)
        cell = fused(session, update=False)
        cell.update(checked=False)
        assert measured_cell.MOST_AWAITED not in order  # what is scripted calls nothing through it
        monkeypatch.setattr(FusedCell, "_is_native", lambda _: True)
        cell._measured = ()
        measure = type(cell.graphs[0]).measure
        monkeypatch.setattr(
            type(cell.graphs[0]),
            "measure",
            lambda *a, **k: order.append("timed") or measure(*a, **k),
        )
        cell.update()
        assert order.index("timed") > order.index(
            measured_cell.MOST_AWAITED
        )  # nothing is timed before
        before = order.count("timed")
        cell.update()
        assert order.count("timed") == before
        assert words.EARLY not in cell.text()  # it was there in time
        built = True  # it took longer than anybody waits: what was timed without it is timed again
        cell.update()
        assert order.count("timed") == 2 * before
        monkeypatch.setattr(native, "await_types", lambda seconds: False)
        cell.measure()
        # In the head, in place of a comparison; nothing else compares either.
        assert f"fused 5.71 ms ({words.EARLY})" in cell.text().splitlines()[0]
        assert f"fused 5.71 ms ({words.EARLY})" in read(cell.html())
        assert not re.search(r"faster|slower|the same", cell.text().partition(", its body")[0])
        assert cell.summary().bound == ""
        assert cell.png() is None
        assert ("fused, whole cell", "timed too early") in [(r[0], r[2]) for r in time_rows(cell)]
        page = timings_page(cell).text
        assert words.EARLY in page.splitlines()[0]
        assert not re.search(r"faster|slower|as fast|the same", page)

    def test_partial_failure_gives_no_figure(self, session):
        cell = fused(session, update=False)

        def broken(seconds=0.3):
            raise ValueError("no")

        cell.graphs[1].measure = broken
        cell.update()
        assert cell.eager is None
        assert cell.notes == ["graph 1 could not be timed: ValueError: no"]
        cell.update()
        assert len(cell.notes) == 1

    def test_state_of_a_kernel(self, session):
        kernel = fused(session, "y = x * 2\n").kernels["gelu_norm"]
        assert kernel.state == "generated"
        kernel.use(CPP.replace("GRAIN = 4", "GRAIN = 16"))
        assert kernel.state == "tuned"
        kernel.use(CPP.replace("0.5", "0.6"))
        assert kernel.state == "edited"

    def test_lock_is_the_sessions(self, session):
        cell = fused(session)
        assert cell.lock is session.lock
        assert isinstance(cell.lock, type(threading.RLock()))

    def test_panel_takes_it(self, session):
        from fuselab.panel import Workbench

        assert isinstance(fused(session).workbench(), Workbench)


class TestTuningOutcome:
    def test_winner_first_then_runners_up(self):
        run = FakeCell().kernels["gelu_norm"].tune(budget=5.0)
        outcome = TuningOutcome("gelu_norm", run)
        rows = outcome.rows()
        assert rows[0]["remark"] == "in use"
        assert rows[0]["config"] == "GRAIN=8 UNROLL=4 STREAM=1"
        assert rows[-1]["time"] == "failed"
        assert rows[-1]["remark"] == "does not fit in registers"
        bundle = outcome._repr_mimebundle_()
        assert "all tried" in bundle["text/plain"]
        assert "runners" not in read(bundle["text/html"])
        assert "image/png" in bundle
        assert "[30 of 30]" in trial_line(run)
        # Beside its cell, which was timed in another run, it says so.
        used = run.trials[run.best].timing
        less = replace(used, median=used.median / 2)
        assert "compare times of one run" in replace(outcome, whole=less).note()
        assert "compare times" not in replace(outcome, whole=used).note()

    def test_nothing_ran(self):
        from fusec.tuning_report import Trial, TuningRun

        run = TuningRun("k", (Trial((("A", 1),), None, "broken"),), None, 4, None, "budget", 1.0)
        outcome = TuningOutcome("k", run)
        assert "none ran, nothing has changed" in repr(outcome)
        assert "image/png" not in outcome._repr_mimebundle_()
        assert trial_line(run) == "k [1 of 4] A=1: failed: broken"


def test_table():
    table = Table(("a", "b"), (("1", "<b>"),))
    assert repr(table) == "a  b\n1  <b>"
    assert "&lt;b&gt;" in table._repr_mimebundle_()["text/html"]
    assert repr(Table(("a",), (), "none")) == "none"


class TestWords:
    @pytest.mark.parametrize(
        ("seconds", "text"),
        [(2.0, "2.00 s"), (0.123, "123 ms"), (1.234e-3, "1.23 ms"), (5e-5, "50.0 µs"),
         (2e-8, "20.0 ns"), (0.0, "0 ns"), (0.99961, "1.00 s"), (9.996e-3, "10.0 ms"),
         (9.996e-5, "0.100 ms")],
    )  # fmt: skip
    def test_duration(self, seconds, text):
        assert words.duration(seconds) == text

    def test_against(self):
        assert noise.against(1.0, 3.0) == "3.0× faster"
        assert noise.against(3.0, 1.0) == "3.0× slower"
        assert noise.against(1.0, 1.01) == "the same"
        assert noise.against(0.0, 1.0) == ""
        assert [words.share(s) for s in (0, 1e-9, 0.005, 0.351, 1)] == "0% <1% <1% 35% 100%".split()

    def test_error(self):
        assert words.error(0.0) == "0"
        assert words.error(float("nan")) == "NaN"
        assert words.error(None) == "–"
        assert words.error(2.44e-7) == "2.4e-07"

    def test_size_and_rate(self):
        assert words.size(-1) == "–"
        assert words.size(512) == "512 B"
        assert words.size(3 << 20) == "3.00 MiB"
        assert words.rate(2_000_000_000, 1.0) == "2.00 GB/s"

    def test_lines(self):
        from fusec.report import SourceLine

        places = [SourceLine("f", n) for n in (3, 4, 5, 8)] + [SourceLine("other", 99)]
        assert words.lines_of(places, "f") == "lines 3-5, 8"
        assert words.lines_of(places[:1], "f") == "line 3"
        assert words.lines_of(places[-1:], "f") == ""

    def test_worst_output(self):
        nan = output(float("nan"), "nan", ok=False)
        assert words.worst([output(), nan, output(1.0)]) is nan
        assert words.worst([]) is None
        verdict = Verdict(False, "wrong", "", outputs=(output(), nan))
        assert "NaN" in words.error_line(verdict)

    def test_spread(self):
        assert words.spread(Timing(1e-3, 9e-4, 2e-3, 3, "")) == "1.00 ms (0.900 to 2.00)"
        assert words.spread(timing(0.05)).startswith("50.0 µs")


def test_backward_in_a_loop_is_nothing_to_mend():
    space = {"torch": torch, "p": torch.ones(8, requires_grad=True), "x": torch.ones(8)}
    session = Session(space)
    text = "for step in range(2):\n    loss = (p * x).sum()\n    loss.backward()"
    made, program = session.prepare(text, CellOptions(), Frontend())
    session.run(made, program)
    summary = made.summary()
    assert summary.to_mend == ()
    assert ".backward() runs between the compiled parts of the loop (line 4" in summary.pauses
    assert "graph break" not in made.text()
