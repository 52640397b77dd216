"""Regions that torch captured once: fused with what is round them, forward and backward."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import fusec

pytestmark = pytest.mark.skipif(
    not hasattr(torch.compiler, "nested_compile_region"), reason="this torch has no regions"
)


def model(layers: int) -> nn.Module:
    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)
            self.register_buffer("scale", torch.full((8,), 0.5))

        @torch.compiler.nested_compile_region
        def forward(self, x):
            return x + self.scale * self.down(nn.functional.gelu(self.up(self.norm(x))))

    torch.manual_seed(0)
    return nn.Sequential(*[Layer() for _ in range(layers)])


def test_inference_is_one_graph_of_kernels():
    module = model(4)
    x = torch.randn(3, 8)
    compiled = fusec.compile(module)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), module(x))
    assert not compiled.fallbacks
    # the sum of one layer and the norm of the next share a kernel: 4 layers, 9 kernels
    assert len(compiled.kernels) == 9


def test_gradients():
    module = model(3)
    other = copy.deepcopy(module)
    x = torch.randn(3, 8)
    compiled = fusec.compile(other)
    for _ in range(2):
        module.zero_grad()
        other.zero_grad()
        module(x).square().sum().backward()
        compiled(x).square().sum().backward()
        for mine, theirs in zip(other.parameters(), module.parameters(), strict=True):
            torch.testing.assert_close(mine.grad, theirs.grad)
    assert not compiled.fallbacks


def test_a_region_within_a_region():
    @torch.compiler.nested_compile_region
    def inner(x):
        return x.sin() + 1

    @torch.compiler.nested_compile_region
    def outer(x):
        return inner(x) * inner(x + 1)

    def twice(x):
        return outer(outer(x))

    x = torch.randn(5)
    compiled = fusec.compile(twice)
    torch.testing.assert_close(compiled(x), twice(x))
    assert len(compiled.kernels) == 1
