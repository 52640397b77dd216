"""Calls without gradients of graphs that call operators: networks, with autocast and without."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import fusec
from fusec.capture.fast_path import direct

pytestmark = pytest.mark.timeout(300)


class Network(nn.Module):
    """A product that autocast rounds, one that is kept in float32, and updated statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.low, self.high, self.norm = nn.Linear(24, 16), nn.Linear(16, 8), nn.BatchNorm1d(16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(torch.tanh(self.low(x)))
        with torch.autocast("cpu", enabled=False):
            return self.high(x.to(self.high.weight.dtype)).sin()


def goes_past_wrappers(compiled: Any) -> bool:
    """Whether what runs a graph is nothing of AOTAutograd's."""
    return all(
        (graph._direct is not None and graph.is_entry(graph.entry()))
        or graph.compiled.__module__.startswith("fusec.")
        for graph in compiled.graphs
    )


@pytest.mark.parametrize("training", [True, False])
def test_parameters_that_would_record(training: bool) -> None:
    torch.manual_seed(0)
    module = Network().train(training)
    exact = copy.deepcopy(module).double()
    compiled = fusec.compile(module, matmul="extern")
    for _ in range(3):
        x = torch.randn(32, 24)
        with torch.no_grad():
            out = compiled(x)
            torch.testing.assert_close(out.double(), exact(x.double()), rtol=1e-4, atol=1e-5)
        assert not out.requires_grad
    assert compiled.graphs[0].externs
    assert goes_past_wrappers(compiled)
    for ours, theirs in zip(module.buffers(), exact.buffers(), strict=True):
        torch.testing.assert_close(ours.double(), theirs.double(), rtol=1e-4, atol=1e-5)
    # where autograd is on, they do
    out = compiled(torch.randn(32, 24))
    out.sum().backward()
    assert out.requires_grad
    assert all(p.grad is not None for p in module.parameters())
    with torch.no_grad():
        assert not compiled(torch.randn(32, 24)).requires_grad


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_autocast(mode: Any) -> None:
    torch.manual_seed(0)
    module = Network()
    other = copy.deepcopy(module)
    compiled = fusec.compile(module, matmul="extern")
    for _ in range(3):
        x = torch.randn(32, 24)
        with mode(), torch.autocast("cpu", torch.bfloat16):
            ours, theirs = compiled(x), other(x)
            assert torch.is_autocast_enabled("cpu")
        assert ours.dtype == theirs.dtype == torch.float32
        assert (ours - theirs).norm() <= 0.02 * theirs.norm()
        assert ours.is_inference() == theirs.is_inference()
    assert compiled.graphs[0].externs
    assert goes_past_wrappers(compiled)
    for mine, true in zip(module.buffers(), other.buffers(), strict=True):
        torch.testing.assert_close(mine, true, rtol=1e-2, atol=1e-3)
    # with what is called past the wrappers, another state of autocast is another graph
    with mode():
        x = torch.randn(32, 24)
        torch.testing.assert_close(compiled(x), other(x), rtol=1e-4, atol=1e-4)


def test_what_is_float32_is_multiplied_so() -> None:
    """Though autocast is on where the product is called."""

    def product(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", enabled=False):
            return torch.sigmoid(x @ w)

    compiled = fusec.compile(product, matmul="extern")
    for _ in range(3):
        x, w = torch.randn(40, 64), torch.randn(64, 40)
        with torch.autocast("cpu", torch.bfloat16):
            out = compiled(x, w)
        exact = torch.sigmoid(x.double() @ w.double())
        torch.testing.assert_close(out.double(), exact, rtol=1e-5, atol=1e-6)
    assert compiled.graphs[0].externs
    assert goes_past_wrappers(compiled)


def test_a_failure_leaves_autocast_as_it_was() -> None:
    def rows(table: torch.Tensor, index: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return table[index].float().exp() @ w

    compiled = fusec.compile(rows, matmul="extern")
    table, w = torch.randn(6, 8), torch.randn(8, 4)
    with torch.autocast("cpu", torch.bfloat16):
        compiled(table, torch.tensor([0, 5]), w)
        with pytest.raises((IndexError, RuntimeError)):
            compiled(table, torch.tensor([0, 6]), w)
        assert torch.is_autocast_enabled("cpu")
        out = compiled(table, torch.tensor([1, 2]), w)
    torch.testing.assert_close(
        out.float(), table[1:3].exp() @ w, rtol=3e-2, atol=3e-2 * float(out.abs().max())
    )


# Before torch 2.12 AOTAutograd puts two such round every graph, by these names, with nothing to do.


class EffectTokensWrapper:
    def post_compile(self, compiled_fn: Any, tokens: int) -> Any:
        def inner_fn(args: list[Any]) -> Any:
            assert not tokens
            return compiled_fn(args)

        return inner_fn


class FunctionalizedRngRuntimeWrapper:
    def post_compile(self, compiled_fn: Any, counted: bool) -> Any:
        def wrapper(args: list[Any]) -> Any:
            assert not counted
            return compiled_fn(args)

        return wrapper


class AOTDispatchSubclassWrapper:
    def post_compile(self, compiled_fn: Any) -> Any:
        def inner_fn(args: list[Any]) -> Any:
            return compiled_fn([each.plain for each in args])

        return inner_fn


def test_wrappers_with_nothing_to_do_are_looked_through() -> None:
    def entry(args: list[Any]) -> Any:
        return args

    within = FunctionalizedRngRuntimeWrapper().post_compile(entry, False)
    assert direct.within_idle(EffectTokensWrapper().post_compile(within, 0)) is entry
    assert direct.within_idle(entry) is entry
    assert direct.within_idle(torch.relu) is torch.relu
    subclasses = AOTDispatchSubclassWrapper().post_compile(entry)
    assert direct.within_idle(subclasses) is subclasses
    around = EffectTokensWrapper().post_compile(subclasses, 0)
    assert direct.within_idle(around) is subclasses


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_operators_that_record_nothing_go_past_torchs_wrappers(mode):
    """What serves is often a function under ``no_grad``, called where autograd is on."""
    weight = torch.nn.Parameter(torch.randn(6, 6))

    @mode()
    def function(x):
        return (x @ weight).relu()

    compiled, x = fusec.compile(function, dynamic=False), torch.randn(3, 6)
    for given in (x, x.clone().requires_grad_()):
        expected = function(given)
        for _ in range(3):
            found = compiled(given)
            torch.testing.assert_close(found, expected)
            assert (found.requires_grad, found.is_inference()) == (False, expected.is_inference())
            assert torch.is_grad_enabled()
    assert all(graph.plain is not None for graph in compiled.graphs)
