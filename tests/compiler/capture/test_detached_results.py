"""What ``detach()`` returned beside what it shares memory with: autograd knows nothing of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import fusec

Function = Callable[[torch.Tensor], tuple[torch.Tensor, ...]]


def all_and_a_row(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = x * 3
    return y, y[0].detach()


def a_row_and_all(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = x * 3
    return y[1].detach(), y


def another_shape_and_all(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = x * 3
    return y.view(-1), y.detach()


def two_rows(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = x * 3
    return y[0], y[1].detach()


def of_what_is_read_as_well(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = x * 3
    return y.neg(), y, y.t().detach()


def views_of_it(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = x * 3
    return y, y.detach()[1], y.detach().t(), y.detach().chunk(3)[2], y[0].detach().view(3, 1)


def alone(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = x * 3
    return y[0].detach(), y.sum()


FUNCTIONS = [
    all_and_a_row,
    a_row_and_all,
    another_shape_and_all,
    two_rows,
    of_what_is_read_as_well,
    views_of_it,
    alone,
]


OF_COMPLEX: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "as numbers": lambda y: torch.view_as_real(y).detach(),
    "detached first": lambda y: torch.view_as_real(y.detach()),
    "the conjugate": lambda y: y.conj().detach(),
    "a part": lambda y: y.imag.detach(),
    "a row": lambda y: torch.view_as_real(y)[1].detach(),
}


@pytest.mark.parametrize("view", OF_COMPLEX.values(), ids=OF_COMPLEX)
def test_views_of_a_complex_one(view: Callable[[torch.Tensor], torch.Tensor]) -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = torch.complex(x, x * 2)
        return y, view(y)

    compiled = fusec.compile(function)
    for _ in range(3):
        x = torch.randn(3, 3, requires_grad=True)
        ours, theirs = compiled(x), function(x)
        for mine, wanted in zip(ours, theirs, strict=True):
            assert mine.requires_grad == wanted.requires_grad
            assert mine.is_conj() == wanted.is_conj()
            assert torch.equal(mine.resolve_conj(), wanted.resolve_conj())
        ours[1].zero_()
        theirs[1].zero_()
        torch.testing.assert_close(ours[0], theirs[0])


@pytest.mark.parametrize("function", FUNCTIONS)
def test_they_want_no_gradient(function: Function, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEC_STRICT", "1")
    compiled = fusec.compile(function)
    for _ in range(3):
        x = torch.randn(3, 3, requires_grad=True)
        ours, theirs = compiled(x), function(x)
        for mine, wanted in zip(ours, theirs, strict=True):
            assert mine.requires_grad == wanted.requires_grad
            assert torch.equal(mine, wanted)
            if not wanted.requires_grad:
                assert (mine.numpy() == wanted.numpy()).all()
        assert not any(mine._base is other for mine in ours for other in ours)
        (got,) = torch.autograd.grad(sum(r.sum() for r in ours if r.requires_grad), x)
        (known,) = torch.autograd.grad(sum(r.sum() for r in theirs if r.requires_grad), x)
        torch.testing.assert_close(got, known)


@pytest.mark.sample(4)
@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("gradient", [False, True])
def test_an_update_of_one_is_seen_in_the_others(function: Function, gradient: bool) -> None:
    compiled = fusec.compile(function)
    x = torch.randn(3, 3, requires_grad=gradient)
    ours, theirs = compiled(x), function(x)
    for results in (ours, theirs):
        for result in results:
            if not result.requires_grad and result.ndim:
                result.add_(1)
    for mine, wanted in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, wanted)
