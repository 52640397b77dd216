"""A terminal says what a page says: the facts are taken out of both and compared."""

from __future__ import annotations

import html
import html.parser
import re
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fuselab
from fuselab.display import render
from fuselab.session.fused_cell import FusedCell

# A figure with its unit: a time, a size, a rate, a ratio, an error.
FIGURE = re.compile(
    r"(?<![\w.])(\d[\d.]*(?:e[-+]\d+)?)(?:\s?(ns|µs|ms|s|B|KiB|MiB|GiB|GB/s|×)(?!\w)|(?<=e-\d\d))"
)
# How many there are of something.
COUNT = re.compile(
    r"(?<![\w.-])(?<!line )(no|\d+) (kernel|extern call|graph break|fusion|guard|output)s?\b"
    r"|\b(\d+) not made\b"
)


class Page(html.parser.HTMLParser):
    """The text of a page, without kernels' texts, and the rows that a terminal leaves to a tab."""

    def __init__(self) -> None:
        super().__init__()
        self.text: list[str] = []
        self._open: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        if tag not in ("br", "img"):
            self._open.append(tag)
        self.text.append(" ")

    def handle_endtag(self, tag: str) -> None:
        while self._open.pop() != tag:
            pass
        self.text.append(" ")

    def handle_data(self, data: str) -> None:
        folded = "details" in self._open and "table" in self._open
        if not folded and self._open[-1:] != ["script"] and self._open[-1:] != ["style"]:
            self.text.append(data)


def on_page(cell: FusedCell) -> str:
    page = Page()
    page.feed(cell.html())
    return " ".join("".join(page.text).split())


def in_terminal(cell: FusedCell) -> str:
    text = cell.text()
    head, _, _ = text.partition(", its body:\n")  # the kernel's own text follows
    return " ".join(head.split())


def figures(text: str) -> set[tuple[str, str]]:
    return {(m[1], m[2] or "") for m in FIGURE.finditer(text)}


def counts(text: str) -> set[str]:
    return {m[0].rstrip("s") for m in COUNT.finditer(text)}


def norm(x: torch.Tensor) -> Any:
    y = F.gelu(x)
    return y, F.layer_norm(y, (32,)).sum(0)


def product(x: torch.Tensor) -> Any:
    return torch.softmax(x @ x.T, -1), x.sort(-1).values


def broken(x: torch.Tensor) -> Any:
    y = x.tanh() * 2
    print("between")
    return y.exp().sum(1)


def fused(function: Any, *inputs: Any) -> FusedCell:
    torch._dynamo.reset()
    made = fuselab.fuse(function)
    made(*inputs)
    cell: FusedCell = made.result
    cell.update(seconds=0.05)
    return cell


def training() -> FusedCell:
    torch._dynamo.reset()
    model = nn.Sequential(nn.Linear(16, 8), nn.GELU(), nn.LayerNorm(8))
    made = fuselab.fuse(model)
    made(torch.randn(4, 16)).sum().backward()
    cell: FusedCell = made.result
    cell.update(seconds=0.05)
    return cell


def recompiled() -> FusedCell:
    torch._dynamo.reset()
    made = fuselab.fuse(norm)
    made(torch.randn(4, 32))
    made(torch.randn(6, 32))
    cell: FusedCell = made.result
    cell.update(seconds=0.05)
    return cell


CELLS = {
    "norm": lambda: fused(norm, torch.randn(16, 32)),
    "product": lambda: fused(product, torch.randn(16, 16)),
    "broken": lambda: fused(broken, torch.randn(16, 32)),
    "training": training,
    "recompiled": recompiled,
}


@pytest.mark.parametrize("name", CELLS)
def test_same_facts(name: str) -> None:
    cell = CELLS[name]()
    page, terminal = on_page(cell), in_terminal(cell)
    assert len(figures(page)) > 5
    assert figures(page) == figures(terminal)
    assert counts(page) == counts(terminal)
    # What is said in words: every name, place, reason and advice.
    summary = cell.summary()
    said = [k.name for k in summary.kernels] + [k.summary for k in summary.kernels]
    said += [k.lines for k in summary.kernels] + [k.target for k in summary.kernels]
    said += [b.reason for b in summary.breaks] + [b.hint for b in summary.to_mend]
    said += [*summary.kept, *summary.notes, *summary.fallbacks]
    said += [each.text for each in summary.recompiles] + [each.hint for each in summary.recompiles]
    said += [summary.device, render.compile_line(dict(summary.stages))]
    for fact in said:
        fact = " ".join(fact.split())
        assert fact in terminal
        assert fact in page
    for call in summary.externs:  # on a page, in a table that is folded
        assert call.reason in terminal
        assert call.reason in html.unescape(cell.html())


def test_facts_are_found() -> None:
    assert figures("0.610 ms (0.600 to 0.640), 3.4× faster, 13.2 GB/s") == {
        ("0.610", "ms"), ("3.4", "×"), ("13.2", "GB/s"),
    }  # fmt: skip
    assert counts("2 kernels, 1 extern call, 3 not made") == {
        "2 kernel",
        "1 extern call",
        "3 not made",
    }
