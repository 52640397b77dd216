"""The first call of a graph computes what later ones do: no mode of AOTAutograd stands round it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.testing import assert_close

import fusec
from fusec.capture import graph_compiler


def alone(a: torch.Tensor) -> Any:
    return torch.linalg.pinv(a)


def with_a_view(a: torch.Tensor) -> Any:
    return torch.linalg.pinv(a), a.view(-1)


def with_an_update(a: torch.Tensor) -> Any:
    found = torch.linalg.pinv(a)
    a.mul_(0.5)
    return found


def with_a_gradient(a: torch.Tensor, b: torch.Tensor) -> Any:
    return torch.linalg.pinv(a), b * 2


@pytest.mark.parametrize("function", [alone, with_a_view, with_an_update, with_a_gradient])
@pytest.mark.parametrize("through_wrappers", [False, True])
def test_complex_inverses(
    function: Callable[..., Any], through_wrappers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ATen takes them apart otherwise where a mode sees its operators, which loses a conjugate."""
    monkeypatch.setenv("FUSEC_STRICT", "1")
    if through_wrappers:
        monkeypatch.setattr(graph_compiler, "epilogue_instead_of_wrappers", lambda *_, **__: None)
    torch._dynamo.reset()
    compiled = fusec.compile(function)
    for _ in range(3):
        given = [torch.randn(3, 3, dtype=torch.complex64)]
        if function is with_a_gradient:
            given.append(torch.randn(3, requires_grad=True))
        copies = [each.detach().clone().requires_grad_(each.requires_grad) for each in given]
        assert_close(compiled(*copies), function(*given))
        assert_close(copies, given)
