"""A compiled step notices what became of an optimizer's state, that of its first parameter too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import fusec


def _forget(optimizer: torch.optim.Optimizer, parameter: torch.Tensor) -> None:
    optimizer.state[parameter].clear()


def _set_to_none(optimizer: torch.optim.Optimizer, parameter: torch.Tensor) -> None:
    optimizer.state[parameter]["momentum_buffer"] = None


def trained(
    wrap: Callable[..., Any], parameters: int, reset: Callable[..., None], which: int
) -> list[torch.Tensor]:
    torch._dynamo.reset()
    given = [torch.nn.Parameter(torch.ones(3)) for _ in range(parameters)]
    optimizer = torch.optim.SGD(given, lr=0.1, momentum=0.9)
    step = wrap(optimizer.step)
    for number in range(6):
        for each in given:
            each.grad = each.detach() + number
        if number == 3:
            reset(optimizer, given[which])
        step()
    return [each.detach() for each in given]


@pytest.mark.sample(2)
@pytest.mark.parametrize("reset", [_forget, _set_to_none])
@pytest.mark.parametrize(("parameters", "which"), [(1, 0), (2, 0), (2, 1)])
def test_a_momentum_that_begins_anew(
    parameters: int, which: int, reset: Callable[..., None]
) -> None:
    wanted = trained(lambda step: step, parameters, reset, which)
    torch.testing.assert_close(trained(fusec.compile, parameters, reset, which), wanted)


def test_a_state_that_is_whole_has_no_more_guards() -> None:
    from fusec.capture.dynamo.optimizer_guards import _incomplete

    given = [torch.nn.Parameter(torch.ones(3)) for _ in range(2)]
    optimizer = torch.optim.Adam(given, lr=0.1)
    for each in given:
        each.grad = torch.ones(3)
    optimizer.step()
    assert not list(_incomplete(optimizer))
    del optimizer.state[given[1]]["step"]
    assert [place for place, _ in _incomplete(optimizer)] == [1]
