"""Operators without a rule for their gradient: it is that of what their kernel calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import fusec

ops: Any = torch.ops.fusec_unregistered
pytestmark = pytest.mark.filterwarnings("ignore:.*an autograd kernel was not registered")


@pytest.fixture(autouse=True)
def library() -> Iterator[torch.library.Library]:
    """Operators of a user's: nothing is registered under autograd."""
    with torch.library._scoped_library("fusec_unregistered", "FRAGMENT") as library:
        library.define("joined(Tensor x, Tensor y) -> Tensor")
        library.define("parts(Tensor x) -> Tensor[]")
        library.define("add_(Tensor(a!) x, Tensor y) -> ()")
        library.define("apart(Tensor x) -> Tensor")
        library.define("places(Tensor x) -> Tensor")
        library.define("with_rule(Tensor x) -> Tensor")
        library.impl("joined", lambda x, y: torch.cat([x, y]), "CompositeExplicitAutograd")
        library.impl("parts", lambda x: [x * 2, x.exp()], "CompositeExplicitAutograd")
        library.impl("add_", lambda x, y: (x.add_(y), None)[1], "CPU")
        library.impl("add_", lambda x, y: None, "Meta")
        library.impl("apart", lambda x: x.detach() * 2, "CPU")
        library.impl("apart", torch.empty_like, "Meta")
        library.impl("places", lambda x: x.argsort(), "CompositeExplicitAutograd")
        library.impl("with_rule", lambda x: x * 2, "CompositeExplicitAutograd")
        torch.library.register_autograd(
            "fusec_unregistered::with_rule", lambda ctx, gradient: gradient * 3, lib=library
        )
        yield library


class Joined(torch.autograd.Function):
    """Nothing is recorded in its forward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return ops.joined(x, x)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        return gradients[0].view(2, -1).sum(0)


def updated(x: torch.Tensor) -> torch.Tensor:
    y = torch.zeros(6)
    ops.add_(y, x)
    return y * x.sin()


def unrecorded(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        y = ops.joined(x, x)
    return y[:6] * x


EAGER: dict[str, Callable[[torch.Tensor], Any]] = {
    "alone": lambda x: ops.joined(x * 2, x * 3),
    "overload": lambda x: ops.joined.default(x * 2, x * 3),
    "and more": lambda x: ops.joined(x * 2, x * 3).square() + torch.cat([x, x]).sin(),
    "list": lambda x: sum(ops.parts(x.sin())),
    "updated": updated,
    "checkpoint": lambda x: checkpoint(
        lambda y: ops.joined(y, y.exp()), x.sin(), use_reentrant=False
    ),
    "one of two": lambda x: ops.joined(x, x).sum() + x.exp(),
    "out of sight": lambda x: ops.apart(x) + x,
}
COMPILED: dict[str, Callable[[torch.Tensor], Any]] = {
    "unrecorded": unrecorded,
    "detached": lambda x: ops.joined(x.detach(), x.detach())[:6] * x,
    "places": lambda x: ops.places(x) * x,
    "a rule": lambda x: ops.with_rule(x).sin(),
    "within a function": lambda x: Joined.apply(x).square(),
}


def graph_beside_eager(function: Callable[[torch.Tensor], Any]) -> Any:
    compiled = fusec.compile(function)
    for _ in range(2):
        x = torch.randn(6, requires_grad=True)
        ours, theirs = compiled(x), function(x)
        torch.testing.assert_close(ours, theirs)
        assert ours.requires_grad == theirs.requires_grad
        weights = torch.rand_like(theirs)
        gradients = [torch.autograd.grad((r * weights).sum(), x)[0] for r in (ours, theirs)]
        torch.testing.assert_close(*gradients)
    (graph,) = compiled.graphs
    return graph


@pytest.mark.parametrize("function", EAGER.values(), ids=EAGER)
def test_eagers_gradients(function: Callable[[torch.Tensor], Any]) -> None:
    assert "has no gradient registered" in graph_beside_eager(function).fallback


@pytest.mark.parametrize("function", COMPILED.values(), ids=COMPILED)
def test_others_compile(function: Callable[[torch.Tensor], Any]) -> None:
    assert not graph_beside_eager(function).fallback


def test_without_gradients_it_compiles() -> None:
    compiled = fusec.compile(EAGER["and more"])
    x = torch.randn(6)
    torch.testing.assert_close(compiled(x), EAGER["and more"](x))
    with torch.no_grad():
        compiled(x.requires_grad_())
    assert not any(graph.fallback for graph in compiled.graphs)
