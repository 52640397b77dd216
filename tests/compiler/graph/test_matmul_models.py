"""Models whose matrix products are bodies: what fusion makes of them, by the interpreter."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fusec.ir.program import Compute, Extern
from support.interpreted import Interpreted


class Block(nn.Module):
    """A transformer's block, attention written out."""

    def __init__(self, width: int = 32, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.qkv(self.first(x)).split(width, 2)
        q, k, v = (t.view(batch, length, self.heads, -1).transpose(1, 2) for t in parts)
        scores = (q @ k.transpose(-1, -2)) / (width // self.heads) ** 0.5
        later = torch.ones(length, length).triu(1).bool()
        weights = scores.masked_fill(later, -float("inf")).softmax(-1)
        x = x + self.out((weights @ v).transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.second(x))))


class Gated(nn.Module):
    """A gated MLP behind a root-mean-square norm."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.gate, self.up = (nn.Linear(width, 64, bias=False) for _ in range(2))
        self.down = nn.Linear(64, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Recurrent(nn.Module):
    """Steps that each read the one before."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.state = nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state = torch.zeros(x.shape[0], 16)
        for step in range(x.shape[1]):
            state = torch.tanh(self.inner(x[:, step]) + self.state(state))
        return state


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "block": (Block, (2, 9, 32)),
    "gated": (Gated, (2, 9, 32)),
    "recurrent": (Recurrent, (5, 4, 16)),
    "narrow": (lambda: nn.Sequential(nn.Linear(8, 1), nn.Sigmoid(), nn.Linear(1, 8)), (3, 8)),
}


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", MODELS)
def test_outputs_and_gradients(name: str) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    make, shape = MODELS[name]
    model, x = make(), torch.randn(shape, requires_grad=True)
    inputs = [x, *model.parameters()]
    expected = model(x)
    gradients = torch.autograd.grad(expected.square().sum(), inputs)
    backend = Interpreted(products=True)
    actual = torch.compile(model, backend=backend, dynamic=False)(x)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
    found = torch.autograd.grad(actual.square().sum(), inputs)
    torch.testing.assert_close(found, gradients, rtol=1e-3, atol=1e-4)
    steps = [step for s in backend.schedules for step in s.program.steps]
    assert any(isinstance(step, Compute) and step.body.products for step in steps)
    if name == "block":
        labels = [step.label for step in steps if isinstance(step, Compute) and step.body.products]
        assert not [step for step in steps if isinstance(step, Extern) and not step.is_plumbing]
        assert any("softmax" in label for label in labels), "rows of scores in one tile"
        assert any("gelu" in label for label in labels)
