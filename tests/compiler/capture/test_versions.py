"""How often a tensor was updated, asked for or set within what is compiled, is what eager says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.autograd import _unsafe_preserve_version_counter as kept_version

import fusec

Tensor = torch.Tensor


def kept(x: Tensor) -> Tensor:
    with torch.no_grad(), kept_version(x):
        x.mul_(3)
    return x * 2


def set_back(x: Tensor) -> Tensor:
    before = x._version
    x.copy_(x + 1)
    torch._C._autograd._unsafe_set_version_counter((x,), (before,))
    return x.sin()


def within(x: Tensor) -> tuple[Tensor, int]:
    y = x * 2
    y.add_(1)
    y.mul_(2)
    return y, y._version


def of_a_view(x: Tensor) -> tuple[Tensor, int, int]:
    view = x[1:]
    view.add_(1)
    return view * 1, x._version, view._version


@pytest.mark.parametrize("fn", [kept, set_back, within, of_a_view])
def test_versions(fn: Callable[[Tensor], Any]) -> None:
    compiled = fusec.compile(fn)
    for size in (4, 7, 4):
        x = torch.rand(size).add_(1)
        y = x.clone().add_(0)  # updated once, as x was
        torch.testing.assert_close(compiled(x), fn(y))
        torch.testing.assert_close(x, y)
        assert x._version == y._version


def test_what_backward_saved_may_be_updated_unseen() -> None:
    """A parameter that is gathered anew for backward: its version says that it is the same."""
    weight = torch.rand(5, requires_grad=True)
    out = (weight.sin() * 2).sum()
    fusec.compile(kept)(weight)
    out.backward()
    torch.testing.assert_close(weight.grad, 2 * weight.detach().cos())
