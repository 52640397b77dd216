"""Compiling an optimizer's step is not accompanied by TorchDynamo's remark about the profiler."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import torch
from torch._logging._internal import warning_once

import fusec
from fusec.capture.quiet import no_profiler_remarks

LOGGER = logging.getLogger("torch._dynamo.variables.ctx_manager")


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What the logger lets through."""
    found: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(record.getMessage())

    listener = Listener()
    LOGGER.addHandler(listener)
    yield found
    LOGGER.removeHandler(listener)


def test_a_step_is_compiled_quietly(heard: list[str]) -> None:
    torch._dynamo.reset()
    warning_once.cache_clear()  # said once a process
    weight = torch.randn(4, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.5)
    weight.grad = torch.ones(4)
    wanted = weight.detach() - 0.5

    def step() -> None:
        optimizer.step()

    fusec.compile(step)()
    assert torch.equal(weight.detach(), wanted)
    assert heard == []
    torch._dynamo.reset()
    warning_once.cache_clear()
    torch.compile(step, backend="eager")()
    assert any("Profiler record function" in text for text in heard), "others hear it, as ever"


def test_everything_else_is_heard(heard: list[str]) -> None:
    with no_profiler_remarks():
        LOGGER.warning("Profiler record function %s will be ignored", "step")
        LOGGER.warning("something else")
    LOGGER.warning("Profiler record function %s will be ignored", "later")
    assert heard == ["something else", "Profiler record function later will be ignored"]
