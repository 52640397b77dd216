"""A view and, detached, the same view: AOTAutograd takes the second for a view of the first."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import fusec

View = Callable[[torch.Tensor], torch.Tensor]

VIEWS: dict[str, View] = {
    "turned": lambda y: y.t(),
    "a row": lambda y: y[1],
    "a column": lambda y: y[:, 1],
    "a part": lambda y: y[1:],
    "the diagonal": lambda y: y.diagonal(),
    "one more dimension": lambda y: y[None],
    "permuted": lambda y: y.unsqueeze(0).permute(1, 2, 0),
    "another shape": lambda y: y.view(-1),
    "all": lambda y: y,
}


def same(function: Callable[[torch.Tensor], tuple[torch.Tensor, ...]]) -> None:
    compiled = fusec.compile(function)
    for _ in range(2):
        x = torch.randn(3, 3, requires_grad=True)
        ours, theirs = compiled(x), function(x)
        for mine, wanted in zip(ours, theirs, strict=True):
            assert torch.equal(mine, wanted)
            assert mine.requires_grad == wanted.requires_grad
        got, known = (torch.autograd.grad(weighted(results), x) for results in (ours, theirs))
        torch.testing.assert_close(got, known)


def weighted(results: tuple[torch.Tensor, ...]) -> torch.Tensor:
    wanted = [each.flatten() for each in results if each.requires_grad]
    return torch.stack([(torch.arange(float(r.numel())) * r).sum() for r in wanted]).sum()


@pytest.mark.sample(5)
@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_a_view_and_itself_detached(view: View) -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x * 3
        return view(y), view(y).detach()

    same(function)


@pytest.mark.parametrize("name", ["turned", "a part"])
def test_detached_first(name: str) -> None:
    view = VIEWS[name]

    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x * 3
        return view(y.detach()), y[0], view(y)

    same(function)


def test_its_data() -> None:
    same(lambda x: ((y := x * 3).t(), y.t().data))


def test_only_the_shape_changes() -> None:
    compiled = fusec.compile(lambda x: ((y := x * 3).view(-1), y.view(-1).detach()))
    compiled(torch.randn(3, 3, requires_grad=True))
    assert compiled.graphs[0].kernels
