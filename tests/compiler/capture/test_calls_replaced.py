"""Calls of a function after an object is gone that an earlier compilation of it guards."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import fusec
from support.calls import native_part, strict_calls

__all__ = ["native_part", "strict_calls"]  # fixtures of every test here


def test_an_optimizer_that_is_replaced() -> None:
    """TorchDynamo throws away what it made for the first one; with FUSEC_STRICT the call raised."""

    def trained(compiler: Callable[..., Any]) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = nn.Linear(3, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def update() -> None:
            optimizer.step()

        compiled, weights = compiler(update), []
        for step in range(5):
            if step == 2:
                model, optimizer = copy.deepcopy((model, optimizer))
            optimizer.zero_grad(set_to_none=False)
            model(torch.ones(1, 3)).sum().backward()
            compiled()
            weights.append(model.weight.detach().clone())
        return weights

    wanted, found = trained(lambda f: f), trained(fusec.compile)
    torch.testing.assert_close(found, wanted)
