"""Results that share memory in eager share it, and results lie as in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import fusec

Function = Callable[[torch.Tensor], tuple[torch.Tensor, ...]]


def zeros_and_a_view(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = x * 2
    view = y.reshape(-1)
    view.zero_()
    return view, y


def flipped_and_a_view(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = x.flip(0)
    return y[1:], y, x + 1


def twice(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = torch.ones_like(x)
    return y, y, y.t()


def only_views(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = torch.arange(12.0).reshape(3, 4)
    return y[:2], y[1:], x.sum()


def computed(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = torch.tanh(x)
    return y.t(), y, y[0]


@pytest.mark.parametrize("target", ["cpp", "triton"])
@pytest.mark.parametrize(
    "function", [zeros_and_a_view, flipped_and_a_view, twice, only_views, computed]
)
def test_who_writes_to_one_result_sees_it_in_the_others(function: Function, target: str) -> None:
    torch._dynamo.reset()
    x = torch.randn(5, 7)
    compiled = fusec.compile(function, target=target)
    for _ in range(2):
        found, wanted = compiled(x), function(x)
        for place in range(len(wanted)):
            for results in (found, wanted):
                results[place].add_(place + 1)
            for a, b in zip(found, wanted, strict=True):
                torch.testing.assert_close(a, b)
                assert a.stride() == b.stride()
    assert not compiled.fallbacks


@pytest.mark.parametrize("target", ["cpp", "triton"])
def test_what_is_filled_lies_as_it_did(target: str) -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x.square()
        z = x.exp()
        return y.zero_(), z.fill_(3), torch.ones_like(x), torch.full_like(x, 2), x.flip(1)

    for x in (torch.randn(8, 4, 3).permute(0, 2, 1), torch.randn(6, 5)[:, ::2], torch.randn(0, 3)):
        torch._dynamo.reset()
        for a, b in zip(fusec.compile(f, target=target)(x), f(x), strict=True):
            torch.testing.assert_close(a, b)
            assert a.stride() == b.stride()


@pytest.mark.parametrize("step", [1, 2, 3])
def test_an_update_through_windows(step: int) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        windows = y.unfold(0, step, step)
        windows.copy_(windows * 0.5 + 1)
        return y

    torch._dynamo.reset()
    x = torch.randn(6144)
    compiled = fusec.compile(f)
    torch.testing.assert_close(compiled(x), f(x))
    assert not compiled.fallbacks


VIEWS_OF_ALL: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "itself": lambda v: v,
    "expand_as": lambda v: v.expand_as(v),
    "detach": lambda v: v.detach(),
    "slice": lambda v: v[:],
    "transposed twice": lambda v: v.t().t(),
    "contiguous": lambda v: v.contiguous(),
}


@pytest.mark.parametrize("target", ["cpp", "triton", "plain"])
def test_a_view_that_changes_nothing_is_a_tensor_of_its_own(target: str) -> None:
    """Who gives one of them another shape or asks for its gradient does not see it elsewhere."""
    for name, view in VIEWS_OF_ALL.items():
        for product in (False, True):

            def f(x: torch.Tensor, view: Any = view, product: bool = product) -> Any:
                y = x @ x.t() if product else x * 2
                return view(y), y, view(y)

            torch._dynamo.reset()
            x = torch.randn(3, 3)
            compiled = fusec.compile(f, target=target)
            for _ in range(2):
                found, wanted = compiled(x), f(x)
                for results in (found, wanted):
                    results[2].unsqueeze_(0)
                    results[0].requires_grad_()
                for a, b in zip(found, wanted, strict=True):
                    assert (a.shape, a.requires_grad) == (b.shape, b.requires_grad), name
                    torch.testing.assert_close(a, b)
                assert len({r.untyped_storage().data_ptr() for r in found}) == 1
            assert not compiled.fallbacks
