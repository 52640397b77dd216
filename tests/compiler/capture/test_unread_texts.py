"""Texts of graphs for torch's logs: written where somebody reads them, and only there."""

from __future__ import annotations

import contextlib
import logging

import pytest
import torch
from torch import Tensor, fx
from torch._functorch._aot_autograd import graph_compile
from torch._logging._internal import trace_log

import fusec
from fusec.capture.dynamo.unread_texts import unread_texts


def _loss(x: Tensor) -> Tensor:
    return (x.sin() * x).sum()


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The graphs that texts are made of."""
    made: list[str] = []
    original = fx.GraphModule.print_readable

    def counted(self: fx.GraphModule, *args: object, **kwargs: object) -> str:
        if kwargs.get("expanded_def"):
            made.append(type(self).__name__)
        return original(self, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(fx.GraphModule, "print_readable", counted)
    torch.compiler.reset()
    return made


def _step(compiled: object) -> None:
    x = torch.randn(7, requires_grad=True)
    (got,) = torch.autograd.grad(compiled(x), x)  # type: ignore[operator]
    torch.testing.assert_close(got, x.detach().cos() * x + x.detach().sin())


def test_nobody_reads_them(written: list[str]) -> None:
    """They are written for another backend all the same."""
    _step(fusec.compile(_loss))
    assert not written
    _step(torch.compile(_loss, backend="aot_eager"))
    assert len(written) == 3


@pytest.mark.parametrize("name", ["aot_joint_log", "aot_graphs_log"])
def test_a_log_that_is_on_has_them(written: list[str], name: str) -> None:
    """``TORCH_LOGS=aot_joint_graph`` and ``aot_graphs`` set a level."""
    log: logging.Logger = getattr(graph_compile, name)
    before = log.level
    log.setLevel(logging.INFO)
    try:
        _step(fusec.compile(_loss))
    finally:
        log.setLevel(before)
    assert len(written) == 3


def test_a_trace_has_them(written: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """``TORCH_TRACE`` adds a handler."""
    monkeypatch.setattr(trace_log, "handlers", [logging.NullHandler()])
    _step(fusec.compile(_loss))
    assert len(written) == 3


def test_what_raises_within_leaves_nothing_behind(written: list[str]) -> None:
    """The next compilation of another backend writes its texts."""
    with contextlib.suppress(ValueError), unread_texts():
        raise ValueError
    _step(torch.compile(_loss, backend="aot_eager"))
    assert len(written) == 3
