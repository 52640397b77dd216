"""Explanations: every break, guard and recompile in words, with the line and a way to mend it."""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import fusec
from support.releases import OLD

LOGGER = logging.getLogger("fusec.tests")


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch._dynamo.reset()


def while_loop(x: torch.Tensor) -> torch.Tensor:
    while x.sum() < 10:
        x = x + x.abs() + 1
    return x


BREAKS: dict[str, tuple[Callable[[torch.Tensor], Any], str, str]] = {
    "print": (lambda x: (x.sin(), print("a"), x.cos())[2], "print runs", "move the print"),
    "item": (lambda x: x.sin() * x.sum().item(), "becomes a Python number", "keep the value"),
    "tolist": (lambda x: x.sin() + x.tolist()[0], "becomes a Python list", "keep the values"),
    "branch": (lambda x: x.sin() if x.sum() > 0 else x.cos(), "`if`", "torch.where"),
    "loop": (while_loop, "`while`", "torch.where"),
    "logging": (lambda x: (x.sin(), LOGGER.warning("x"))[0], "logged", "log before"),
    "warning": (lambda x: (x.sin(), warnings.warn("x", stacklevel=1))[0], "logged", "log before"),
    "time": (lambda x: x.sin() * time.time(), "time.time", "outside"),
    "mask": (lambda x: x[x > 0].sum(), "size of a result", "torch.where"),
    "file": (lambda x: (open(__file__).close(), x.sin())[1], "open() runs", "outside"),
    "text": (lambda x: (str(x), x.sin())[1], "turned into text", "format it"),
    "disabled": (
        lambda x: torch._dynamo.disable(lambda y: y + 1)(x.sin()),
        "torch.compiler.disable",
        "remove the decorator",
    ),
    "asked for": (
        lambda x: (x.sin(), torch._dynamo.graph_break(), x.cos())[2],
        "asks for it",
        "remove the call",
    ),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", BREAKS)
def test_breaks_in_words(name: str) -> None:
    function, reason, hint = BREAKS[name]
    x = torch.randn(4)
    report = fusec.explain(function, x)
    found = next(each for each in report.breaks if reason in each.reason)
    assert hint in found.hint
    assert found.where is not None
    assert found.where.file == __file__
    assert "to mend it: " in str(report)


def test_all_breaks_at_once() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        print("one")
        z = y * y.sum().item()
        if z.mean() > 0:
            z = z + 1
        return z.cos()

    report = fusec.explain(function, torch.randn(4))
    assert len(report.breaks) == 3
    lines = [each.where.line for each in report.breaks if each.where is not None]
    first = function.__code__.co_firstlineno
    assert lines == [first + 2, first + 3, first + 4]


def scale(x: torch.Tensor, n: float) -> torch.Tensor:
    return x * n


def recompile(*calls: tuple[Any, ...], **options: Any) -> fusec.report.Recompile:  # type: ignore[name-defined]
    built = fusec.compile(scale, **options)
    for call in calls:
        built(*call)
    return built.recompiles[-1]


def test_recompiles_in_words() -> None:
    x = torch.randn(4)
    cases = [
        (
            (x, 2),
            (torch.randn(5), 2),
            "x has 5 elements in dimension 0, not 4",
            "mark_dynamic(x, 0)",
        ),
        ((x, 2), (x, 3), "n is not 2", "0-dimensional tensor"),
        ((x, 2), (x.double(), 2), "x is of dtype float64, not float32", "convert"),
        ((x, 2), (torch.randn(4, 2), 2), "x has 2 dimensions, not 1", "reshape"),
        ((x, 2), (torch.randn(8)[::2], 2), "x lies differently", ".contiguous()"),
        ((x, 2), (x.clone().requires_grad_(), 2), "autograd", "no_grad"),
        ((x, 2), (torch.randn(1), 2), "x has 1 elements", "mark_dynamic"),
    ]
    for first, second, text, hint in cases:
        torch._dynamo.reset()
        found = recompile(first, second, dynamic=False)
        assert text in found.text, (text, found)
        assert hint in found.hint, (hint, found)
        assert found.guard


def test_one_recompile_is_one_entry_however_much_code_there_is() -> None:
    built = fusec.compile(scale, dynamic=False)
    for size in range(2, 7):
        built(torch.randn(size), 2)
    assert len(built.recompiles) == 4
    assert "x has 6 elements in dimension 0, not 5" in str(built.explain())


def test_too_many_recompiles_are_told() -> None:
    built = fusec.compile(scale, dynamic=False)
    limit = torch._dynamo.config.recompile_limit
    for size in range(2, limit + 6):
        built(torch.randn(size), 2)
    assert f"compiled {limit} times already" in built.recompiles[-1].text
    assert len(built.recompiles) == limit


def test_a_changed_state_is_told() -> None:
    built = fusec.compile(scale)
    x = torch.randn(4, requires_grad=True)
    built(x, 2)
    with torch.no_grad():
        built(x, 2)
    assert "grad_mode" in built.recompiles[-1].text


def test_what_backward_keeps() -> None:
    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Dropout(0.1), nn.Linear(256, 64))
    report = fusec.explain(model, torch.randn(32, 64))
    new = [each for each in report.saved if not each.given]
    given = [each for each in report.saved if each.given]
    assert given
    # the input of gelu, the mask of dropout, and what the second product takes
    assert sum(each.bytes for each in new) == 32 * 256 * (4 + 1 + 4)
    assert "kept for backward: 3 tensors, 72.0 KiB" in str(report)
    assert fusec.explain(model.eval().requires_grad_(False), torch.randn(32, 64)).saved == ()


def test_what_is_computed_again() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return (x.sin() * 2).exp().cos().sum()

    report = fusec.explain(function, torch.randn(100, requires_grad=True))
    assert not [each for each in report.saved if not each.given]
    assert "computed again in backward rather than kept" in str(report)
    assert {"sin", "exp"} <= set(report.graphs[0].recomputed)


def test_the_report_reads_well() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
    report = fusec.explain(model, torch.randn(3, 8))
    text = str(report)
    assert text.startswith("Sequential: 1 graph, ")
    assert "calls aten.mm.default: a matrix product runs best in BLAS" in text
    assert OLD or "0.weight is a float32 tensor of 8 x 8 on cpu, requires grad" in text
    assert "__import" not in text
    assert "_parameters" not in text
    assert "<li>" in report._repr_mimebundle_()["text/html"]
    assert max(map(len, text.splitlines())) < 160


def test_a_compiled_function_explains_itself() -> None:
    built = fusec.compile(scale)
    built(torch.randn(4), 2)
    assert fusec.explain(built, torch.randn(4), 3).recompiles == built.recompiles
