"""What is first in a result: the kernel, the cell's lines with their costs, the bytes."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import fusec
from fusec.inspect.line_costs import line_costs
from fusec.report import Timing
from fuselab.display import listing, render, words
from fuselab.display.bounds import Traffic, bars, bound, limit_words, saved
from fuselab.display.kernel_text import extent_of
from fuselab.display.source_lines import LineView
from fuselab.session.cell_options import CellOptions, Frontend
from fuselab.session.fused_cell import FusedCell
from fuselab.session.measured_cell import multiplies
from fuselab.session.session import Session

BODY = "y = F.gelu(x)\nz = y * w\n\np = (z / z.sum(-1, keepdim=True)).softmax(-1)\n"


@pytest.fixture(scope="module")
def cell() -> FusedCell:
    torch._dynamo.reset()
    space = {"F": F, "torch": torch, "x": torch.rand(512, 1024), "w": torch.rand(1024)}
    session = Session(space)
    made, program = session.prepare(BODY, CellOptions(name="gelu"), Frontend())
    session.run(made, program)
    made.update(seconds=0.05)
    return made


def bare(page: str) -> str:
    page = re.sub(r"<(style|script)>.*?</\1>", "", page, flags=re.S)
    return re.sub(r"<[^>]+>", "", page)


class Opened(HTMLParser):
    """The text that stands there before anything is unfolded."""

    def __init__(self) -> None:
        super().__init__()
        self.text: list[str] = []
        self._closed: list[bool] = []
        self._tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self._tags.append(tag)
        if tag == "details":
            self._closed.append("open" not in dict(attrs))

    def handle_endtag(self, tag: str) -> None:
        while self._tags.pop() != tag:
            pass
        if tag == "details":
            self._closed.pop()

    def handle_data(self, data: str) -> None:
        if not any(self._closed) and self._tags[-1:] not in (["style"], ["script"]):
            self.text.append(data)


def at_once(page: str) -> str:
    parser = Opened()
    parser.feed(page)
    return "".join(parser.text)


def test_a_kernel_of_many_lines_is_colored_once(
    cell: FusedCell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once for the listing and once for all lines of the cell: 300 of them took a minute."""
    colored: list[str] = []

    def highlight(text: str, target: str) -> list[Any]:
        colored.append(text)
        return listing.highlight(text, target)

    monkeypatch.setattr(render, "highlight", highlight)
    summary = cell.summary()
    one = next(line for line in summary.lines if line.at)
    lines = tuple(replace(one, number=n) for n in range(1, 100))
    assert len(render._opened(replace(summary, lines=lines))) == 99
    assert len(colored) == len(set(colored)) == 1


class TestKernelFirst:
    @pytest.mark.parametrize("target", ["cpp", "triton", "plain"])
    @pytest.mark.parametrize("rows", [8, 100_000])
    def test_the_body_is_found(self, target: str, rows: int) -> None:
        torch._dynamo.reset()
        compiled = fusec.compile(lambda x: F.gelu(x).sum(0), target=target)
        with torch.no_grad():
            compiled(torch.rand(rows, 8))
        for kernel in compiled.kernels.values():
            extent = extent_of(kernel.source, target)
            lines = kernel.source.splitlines()
            body = lines[extent.first - 1 : extent.last]
            head = "@triton.jit" if target == "triton" else 'extern "C"'
            assert body[0].startswith(head)
            assert body[-1] == "}" or body[-1].startswith("    ")
            # Every line that computes something of the user's is in it.
            inside = range(extent.first, extent.last + 1)
            assert all(line in inside for line in kernel.generated.origins)
            assert not any(line.startswith(("def launch", "#include")) for line in body)

    def test_a_broken_text_is_all_shown(self) -> None:
        assert extent_of("int main;\n", "cpp").last == 1
        assert extent_of("", "triton").count == 0

    def test_card_and_terminal_open_on_the_loop(self, cell: FusedCell) -> None:
        page = cell.html()
        opened = at_once(page)
        assert "#pragma omp parallel for" in opened
        assert "#include" not in opened
        assert "// ---- helpers.h" not in opened
        assert "// ---- helpers.h" in page
        below = cell.text().partition("its body:\n")[2]
        assert below.index("#pragma omp parallel for") < 400
        assert "#include" not in below


class TestSourceFirst:
    def test_every_line_with_its_share(self, cell: FusedCell) -> None:
        lines = cell.summary().lines
        assert [line.text for line in lines] == ["%%fuse", *BODY.splitlines()]
        works = [line.number for line in lines if line.works]
        assert works == [2, 3, 5]
        assert sum(line.time for line in lines if line.works) == pytest.approx(1, abs=1e-6)
        moved = sum(line.bytes for line in lines if line.bytes > 0)
        (kernel,) = cell.kernels.values()
        source = kernel.generated
        assert moved == pytest.approx(source.read_bytes + source.written_bytes, rel=1e-3)
        # gelu reads x and computes most; the product reads one row.
        assert lines[1].time > lines[2].time
        assert lines[1].bytes > lines[2].bytes
        assert lines[1].color != lines[2].color

    def test_a_line_opens_to_its_kernel_lines(self, cell: FusedCell) -> None:
        page = cell.html()
        (found,) = re.findall(r"<details><summary class=\"l2\".*?</details>", page, flags=re.S)
        text = bare(found)
        assert "fx_one_plus_erf" in text
        assert "fx_exp" not in text
        assert "z_row" not in text

    def test_hovering_lights_both_sides(self, cell: FusedCell) -> None:
        page = cell.html()
        card = re.search(r'class="fuselab-card" id="([\w-]+)"', page)
        assert card is not None
        assert f"#{card[1]}:has(.l2:hover) .l2" in page
        assert page.count("<span class='l2'>") > 1

    def test_it_says_line_and_not_cell(self, cell: FusedCell) -> None:
        assert "line 2" in at_once(cell.html())
        assert not re.search(r"\bcell \d", at_once(cell.html()))

    def test_a_library_call_has_its_line(self) -> None:
        torch._dynamo.reset()
        space = {"torch": torch, "x": torch.rand(64, 64)}
        session = Session(space)
        made, program = session.prepare("y = x @ x\nz = y.relu() + 1\n", CellOptions(), Frontend())
        session.run(made, program)
        made.update(seconds=0.02)
        lines = made.summary().lines
        assert lines[1].externs == ("aten.mm",)
        assert lines[1].time > 0
        assert sum(line.time for line in lines if line.works) == pytest.approx(1, abs=1e-6)

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
    def test_the_bytes_of_the_lines_are_those_of_the_cell(self, dtype: torch.dtype) -> None:
        torch._dynamo.reset()
        session = Session({"torch": torch, "x": torch.rand(64, 64).to(dtype)})
        body = "y = (x @ x).relu()\nz = y.sum(0)\n"
        made, program = session.prepare(body, CellOptions(), Frontend())
        session.run(made, program)
        made.update(seconds=0.02)
        summary = made.summary()
        assert summary.traffic is not None
        moved = [line.bytes for line in summary.lines if line.bytes > 0]
        assert sum(moved) == pytest.approx(summary.traffic.fused, abs=8)
        assert all(kernel.lines for kernel in summary.kernels), "a kernel of no line"

    def test_symbolic_sizes_have_those_of_the_latest_call(self) -> None:
        torch._dynamo.reset()
        session = Session({"torch": torch, "x": torch.rand(96, 320)})
        body = "y = torch.tanh(x) * 2\nz = y.sum(1)\n"
        made, program = session.prepare(body, CellOptions(dynamic=True), Frontend())
        session.run(made, program)
        made.update(seconds=0.02)
        summary = made.summary()
        (view,) = summary.kernels
        assert view.moved == pytest.approx((2 * 96 * 320 + 96) * 4, abs=8)
        assert re.search(r"\(now s\d+ = \d+", view.summary)
        lines = [line for line in summary.lines if line.works]
        assert [line.number for line in lines] == [2, 3]
        assert sum(line.time for line in lines) == pytest.approx(1, abs=1e-6)
        assert sum(line.bytes for line in lines) == view.moved

    def test_an_optimizer_has_the_costs_of_its_step(self) -> None:
        torch._dynamo.reset()
        layer = torch.nn.Linear(32, 8)
        step = torch.optim.SGD(layer.parameters(), 0.1)
        session = Session({"layer": layer, "step": step, "x": torch.rand(16, 32)})
        body = "step.zero_grad()\nloss = layer(x).square().mean()\nloss.backward()\nstep.step()\n"
        made, program = session.prepare(body, CellOptions(), Frontend())
        session.run(made, program)
        made.update(seconds=0.02)
        lines = {line.number: line for line in made.summary().lines if line.works}
        assert list(lines) == [3, 5]
        assert min(line.time for line in lines.values()) > 0
        assert lines[5].bytes == 3 * 4 * (32 * 8 + 8)  # read with the gradients, and written
        (found,) = re.findall(r"<details><summary class=\"l5\".*?</details>", made.html(), re.S)
        assert bare(found).count('extern "C"') == len(lines[5].at) > 0


def test_line_costs_are_those_of_the_kernel(cell: FusedCell) -> None:
    (kernel,) = cell.kernels.values()
    costs = line_costs(kernel)
    assert sum(cost.operations for cost in costs.values()) == pytest.approx(
        kernel.generated.operations,
        rel=0.05,  # of the body before patterns are replaced
    )
    assert [place.line for place in costs] == [2, 3, 5]


class TestBytes:
    def test_before_and_after(self, cell: FusedCell) -> None:
        traffic = cell.traffic
        assert traffic is not None
        size = 512 * 1024 * 4
        # gelu, product, sum, quotient, softmax: each through memory.
        assert traffic.eager == pytest.approx(9 * size, rel=0.1)
        assert traffic.fused == pytest.approx(4 * size, rel=0.1)
        for form in (cell.text(), bare(cell.html())):
            assert "eager moves" in form
            assert saved(traffic) in form
            assert cell.summary().bound in form or cell.summary().bound[1:] in form

    @pytest.mark.parametrize(
        ("limit", "fused", "said"),
        [(0.93, 1.0, "waits for memory: 0.93 of a copy"), (0.2, 1.0, "bound by what it computes"),
         (1.1, 1.0, "as fast as a copy"), (0.6, 1.0, "waits for memory: 0.60 of a copy")],
    )  # fmt: skip
    def test_what_bounds_it(self, limit: float, fused: float, said: str) -> None:
        time = Timing(fused, fused, fused, 9, "")
        traffic = Traffic(3, 1, 1, limit, limit, 0)
        assert said in bound(traffic, time)
        # What took longer than the cell is no limit of it.
        assert limit_words(traffic, time).startswith("limit here") == (limit < fused)

    def test_products_and_small_cells(self) -> None:
        time = Timing(1e-3, 1e-3, 1e-3, 9, "")
        assert "products" in bound(Traffic(3, 1, 1, 1e-4, 8e-4, 9), time)
        small = Timing(1e-5, 1e-5, 1e-5, 9, "")
        assert "too small" in bound(Traffic(3, 1, 1, 1e-6, 1e-6, 0), small)
        said = bound(Traffic(3, 1, 1, 1e-6, 1e-6, 0), time, {"softmax": small}, ["aten.topk"])
        assert said == "most of 1.00 ms is spent outside of its kernels: in aten.topk"
        # The calls were timed, too: it is none of them.
        tiny = Traffic(3, 1, 1, 1e-6, 1e-6, 0)
        said = bound(tiny, time, {"softmax": small}, ["aten.mm"], called=1e-5)
        assert "the call itself takes most of 1.00 ms" in said
        assert "too small" in bound(Traffic(3, 1, 1, 1e-6, 3e-5, 9), time)
        assert bound(None, time) == bound(Traffic(3, 1, 1, 1.0, 1.0, 0), None) == ""

    def test_what_its_kernels_take_is_not_the_calls(self) -> None:
        whole, most = Timing(5e-6, 5e-6, 5e-6, 9, ""), Timing(4e-6, 4e-6, 4e-6, 9, "")
        traffic = Traffic(3, 1, 1, 1e-6, 1e-6, 0)
        said = bound(traffic, whole, {"gelu": most})
        assert said == "too small to fill the machine, though its kernels take most of 5.00 µs"
        assert "the call itself takes most" in bound(
            traffic, whole, {"gelu": Timing(1e-6, 0, 0, 9, "")}
        )

    def test_a_copy_of_less_than_is_moved_says_so(self) -> None:
        again, once = (Traffic(9 << 20, n << 20, 2 << 20, 1.0, 1.0, 0) for n in (4, 2))
        time = Timing(2.0, 2.0, 2.0, 9, "")
        assert limit_words(again, time) == "limit here 1.00 s: a copy of its 2.00 MiB in and out"
        assert limit_words(once, time) == "limit here 1.00 s: a copy of its 2.00 MiB"

    def test_its_words_are_explained(self, cell: FusedCell) -> None:
        _, _, rest = cell.html().partition("What these words mean")
        for word in ("kernel", "fusion", "guard"):
            assert f"<b>{word}</b>: " in rest
        assert "<b>extern call</b>" not in rest

    def test_bars(self) -> None:
        assert bars(Traffic(40, 10, 1, 1, 1, 0), 40) == [("eager", 40, 40), ("fused", 10, 10)]
        assert bars(Traffic(-1, 10, 1, 1, 1, 0), 40) == [("fused", 10, 40)]


def test_a_call_that_takes_most_of_the_time_is_named() -> None:
    time = Timing(1e-3, 0.9e-3, 1.1e-3, 9, "")
    traffic = Traffic(3, 2, 2, 1e-6, 2e-4, 10)
    said = bound(traffic, time, {}, ["aten.mm", "aten.sort"], None, 9e-4, {"aten.sort": 8e-4})
    assert said == "most of 1.00 ms is spent outside of its kernels: in aten.sort"
    assert "products" in bound(traffic, time, {}, ["aten.mm"], None, 9e-4, {"aten.sort": 1e-4})
    names = {"aten.mm": True, "aten.bmm": True, "aten.sort": False, "aten.topk.values": False}
    names |= {"mkldnn._linear_pointwise": True, "aten.convolution": True}
    assert {name: multiplies(name) for name in names} == names


def test_what_next(cell: FusedCell) -> None:
    said = dict(cell.summary().next)
    assert said["edit"] == "%%fuse --edit gelu"
    assert said["write 4.00 MiB less"] == "%%fuse --out p"
    assert "next    edit: %%fuse --edit gelu" in cell.text()


def test_colors_grow_with_the_share() -> None:
    def blue(line: LineView) -> int:
        return int(line.color[-2:], 16)

    shares: list[Any] = [LineView("", 1, "x", time=share) for share in (0.0, 0.1, 0.5, 1.0)]
    assert [blue(line) for line in shares] == sorted(map(blue, shares), reverse=True)
    assert len({line.color for line in shares}) == 4


def test_lines_of_another_cell_stand_beside_their_kernel_lines(tmp_path: Path) -> None:
    """A model defined in one cell, fused in another: nothing in the gutter said which line."""
    torch._dynamo.reset()
    path = tmp_path / "ipykernel_1" / "2.py"
    path.parent.mkdir()
    path.write_text("def softmax(x):\n    e = x.exp()\n    return e / e.sum(1)[:, None]\n")
    space: dict[str, Any] = {"torch": torch, "x": torch.randn(8, 16)}
    exec(compile(path.read_text(), str(path), "exec"), space)
    session = Session(space)
    cell, program = session.prepare("p = softmax(x)", CellOptions(name="soft"), Frontend())
    session.run(cell, program)
    page = cell.html()
    mark = words.line_class(str(path), 2)
    assert f'summary class="{mark}"' in page
    assert f"span class='{mark}'" in page
    assert f":has(.{mark}:hover) .{mark}" in page
    assert re.search(r"title='another cell, line 2: e = x.exp\(\)[^']*'>other 2<", page)
    assert "another cell, lines 2-3" in cell.text()
