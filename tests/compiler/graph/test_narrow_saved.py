"""What backward reads widened is kept narrow."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fusec

HALVES = ("float16", "bfloat16", "bool")
SHAPE = (8, 32, 48)


@pytest.fixture(autouse=True)
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEC_STRICT", "1")
    torch._dynamo.reset()


class Residuals(nn.Module):
    """Layers as autocast runs them on a GPU: norms in float32, products in half precision."""

    def __init__(self, depth: int = 4, width: int = SHAPE[-1]) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(depth))
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for norm, layer in zip(self.norms, self.layers, strict=True):
            normed = norm(x.to(norm.weight.dtype))
            weight, bias = layer.weight.to(x.dtype), layer.bias.to(x.dtype)
            x = x + F.linear(normed.to(x.dtype), weight, bias)
        return x


def large_saved(compiled: fusec.CompiledFunction, elements: int) -> set[str]:
    """Return the types of what is kept for backward and is large."""
    (graph,) = compiled.graphs
    found = set()
    for saved in graph.saved:
        count = 1
        for size in saved.shape:
            count *= int(size)
        if count >= elements and not saved.given:
            found.add(saved.dtype)
    return found


# Triton's interpreter takes ten times as long; it has the functions below.
@pytest.mark.parametrize(
    ("target", "dtype"),
    [
        ("cpp", torch.bfloat16),
        pytest.param("triton", torch.bfloat16, marks=pytest.mark.slow),
        pytest.param("triton", torch.float16, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_the_stream_of_a_network_is_kept_in_half_precision(target: str, dtype: torch.dtype) -> None:
    module = Residuals()
    compiled = fusec.compile(copy.deepcopy(module), target=target)
    x = torch.randn(SHAPE).to(dtype)
    compiled(x).float().square().mean().backward()
    assert large_saved(compiled, x.numel()) == {str(dtype).removeprefix("torch.")}

    exact = copy.deepcopy(module).double()
    exact(x.double()).square().mean().backward()
    module(x).float().square().mean().backward()
    for name, parameter in exact.named_parameters():
        truth = parameter.grad
        eager = (module.get_parameter(name).grad - truth).abs().max()
        found = (compiled.function.get_parameter(name).grad - truth).abs().max()
        assert found <= 2 * eager + 1e-3 * truth.abs().max(), name


FUNCTIONS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "widened": lambda x, w: (x.float() * w).sigmoid() * x.float(),
    "a view": lambda x, w: (x.float().view(-1, w.shape[-1]) * w).sigmoid().square(),
    "a transposed one": lambda x, w: (x.float().mT * w[:, :1].T).sin().mT,
    "twice": lambda x, w: (x.float().double() * w).sigmoid().float(),
    "a mask": lambda x, w: (x > 0).float() * w.exp() * w,
}


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("target", ["cpp", "triton"])
def test_gradients_through_what_is_widened_again(name: str, target: str) -> None:
    function = FUNCTIONS[name]
    compiled = fusec.compile(function, target=target)
    for _ in range(2):
        x = torch.randn(12, 33).half().requires_grad_()
        w = torch.randn(12, 33).requires_grad_()
        if name == "a view":
            w = torch.randn(33).requires_grad_()
        inputs = [w] if name == "a mask" else [x, w]
        wanted = torch.autograd.grad(function(x, w).square().sum(), inputs)
        found = torch.autograd.grad(compiled(x, w).square().sum(), inputs)
        torch.testing.assert_close(found, wanted, rtol=2e-3, atol=2e-3)
    assert large_saved(compiled, 12 * 33) <= {*HALVES, "float32" if name == "a mask" else ""}


def test_what_is_returned_widened_is_what_it_was() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        wide = x.float()
        return wide, wide.sin() * wide

    compiled = fusec.compile(function)
    x = torch.randn(64, 64).half().requires_grad_()
    wide, result = compiled(x)
    assert wide.dtype == torch.float32
    (found,) = torch.autograd.grad(result.sum() + wide.sum(), x)
    (wanted,) = torch.autograd.grad(function(x)[1].sum() + function(x)[0].sum(), x)
    torch.testing.assert_close(found, wanted, rtol=2e-3, atol=2e-3)


def test_how_many_are_widened_again_is_counted() -> None:
    for dtype, count in ((torch.float16, 1), (torch.float32, 0)):
        torch._dynamo.reset()
        x = torch.randn(12, 33).to(dtype).requires_grad_()
        compiled = fusec.compile(lambda x: (x.float().sin() * x.float()).sum())
        compiled(x).backward()
        runs = compiled.graphs[0].passes
        assert [r.changes for r in runs if r.name == "rematerialize_upcasts"] == [count]
