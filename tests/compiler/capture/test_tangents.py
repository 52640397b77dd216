"""Forward-mode AD: nothing guards on tangents, and kernels know none; every call looks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.autograd import forward_ad

import fusec
from fusec.call.native import capsule
from fusec.capture.backend import Backend
from fusec.compiled.graph import CompiledGraph
from fusec.options import Options
from support.calls import native_part, strict_calls

__all__ = ["native_part", "strict_calls"]  # fixtures of every test here

pytestmark = pytest.mark.timeout(300)

Function = Callable[..., Any]
BACKENDS: dict[str, Callable[[Function], Function]] = {
    "fusec": fusec.compile,
    "torch": lambda function: torch.compile(function, backend="fusec"),
    "sizes": lambda function: torch.compile(function, backend="fusec", dynamic=True),
}


def wave(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (x * w).sin() * x


def product(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (x @ w).sin() * x


def update(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    y = x * 2
    return w.mul_(0.5).add_(y), x[1:]


def dual_results(function: Function, x: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
    """Call with a tangent; return results, their tangents, and what became of the arguments."""
    x, w = x.detach().clone().requires_grad_(x.requires_grad), w.clone()
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, torch.full_like(x, 0.5))
        found = function(dual, w)
        values = [*(found if isinstance(found, tuple) else (found,)), w]
        parts = [forward_ad.unpack_dual(each) for each in values]
        none = torch.zeros(())  # stands for no tangent
        return [t.detach().clone() if t is not None else none for pair in parts for t in pair]


@pytest.mark.sample(3)
@pytest.mark.parametrize("first", [False, True], ids=["warm", "first"])
@pytest.mark.parametrize("gradients", [False, True], ids=["forward", "recorded"])
@pytest.mark.parametrize("function", [wave, product, update])
@pytest.mark.parametrize("backend", BACKENDS)
def test_tangents_are_not_lost(
    backend: str, function: Function, gradients: bool, first: bool
) -> None:
    compiled = BACKENDS[backend](function)
    x, w = torch.randn(4, 4, requires_grad=gradients), torch.randn(4, 4)
    for _ in range(0 if first else 3):
        compiled(x, w.clone())
    ours = dual_results(compiled, x, w)
    torch.testing.assert_close(ours, dual_results(function, x, w))
    assert any(each.dim() and each.ne(0).any() for each in ours[1::2])
    torch.testing.assert_close(compiled(x, w.clone()), function(x, w.clone()))


@pytest.mark.parametrize("native", [True, False], ids=["native", "python"])
def test_a_view_of_a_dual_has_a_tangent(native: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not native:
        monkeypatch.setattr(capsule.part, "found", None)
    compiled = torch.compile(wave, backend="fusec")
    x, w = torch.randn(8, 4), torch.randn(4, 4)
    with torch.no_grad():
        compiled(x[2:6], w)
        with forward_ad.dual_level():
            base = forward_ad.make_dual(x, torch.ones(8, 4))
            ours = forward_ad.unpack_dual(compiled(base[2:6], w))
            theirs = forward_ad.unpack_dual(wave(base[2:6], w))
            assert theirs.tangent is not None
            torch.testing.assert_close(ours, theirs)
            # within a level, what has no tangent is computed by kernels
            torch.testing.assert_close(compiled(x[2:6], w), wave(x[2:6], w))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_gradient_with_a_tangent(backend: str) -> None:
    """Forward over reverse: only what backward is given has a tangent."""
    compiled = BACKENDS[backend](wave)
    x, w = torch.randn(4, 4, requires_grad=True), torch.randn(4, 4)
    for _ in range(2):
        torch.autograd.grad(compiled(x, w).sum(), x)

    def tangent(function: Function) -> torch.Tensor | None:
        out = function(x, w)
        with forward_ad.dual_level():
            slope = forward_ad.make_dual(torch.ones(4, 4), torch.full((4, 4), 2.0))
            (found,) = torch.autograd.grad(out, x, slope)
            return forward_ad.unpack_dual(found).tangent

    theirs = tangent(wave)
    assert theirs is not None
    torch.testing.assert_close(tangent(compiled), theirs)


@pytest.mark.sample(6)
@pytest.mark.parametrize(
    "transform",
    [
        lambda f, x, w: torch.func.jvp(f, (x, w), (w, x)),
        lambda f, x, w: torch.func.jacfwd(f)(x, w),
        lambda f, x, w: torch.func.vjp(f, x, w)[1](x),
        lambda f, x, w: torch.func.hessian(lambda *given: f(*given).sum())(x, w),
    ],
    ids=["jvp", "jacfwd", "vjp", "hessian"],
)
@pytest.mark.parametrize("backend", BACKENDS)
def test_transforms_of_what_is_compiled(backend: str, transform: Function) -> None:
    """They are called outside: TorchDynamo does not see them."""
    compiled = BACKENDS[backend](wave)
    x, w = torch.randn(3, 4), torch.randn(3, 4)
    compiled(x, w)
    torch.testing.assert_close(transform(compiled, x, w), transform(wave, x, w))
    torch.testing.assert_close(compiled(x, w), wave(x, w))


@pytest.mark.parametrize("gradients", [False, True], ids=["forward", "recorded"])
def test_torchdynamo_is_given_the_shortest_way(gradients: bool) -> None:
    """No Python of ours stands between its code and the native program."""
    backend, given = Backend(Options()), []

    def remember(module: torch.fx.GraphModule, inputs: Any) -> Function:
        given.append(backend(module, inputs))
        return given[-1]

    torch.compile(wave, backend=remember)(torch.randn(4, requires_grad=gradients), torch.randn(4))
    (graph,) = backend.graphs
    assert given == [graph.entry()]
    assert not isinstance(given[0], CompiledGraph)
    if not gradients:
        assert type(given[0]).__module__ == "fusec.native"
