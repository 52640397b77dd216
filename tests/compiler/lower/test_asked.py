"""Kernels are called what the user called, not what torch takes that apart into."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fusec

LINEAR = nn.Linear(8, 8)
IMAGE = (1, 2, 6, 6)

# What is called, the shape of its input, and the kernels of its forward and backward parts.
CALLS: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], tuple[int, ...], list[str]]] = {
    "roll": (lambda x: x.roll(1, 0) + x.roll(-1, 1), (6, 6), ["roll_kernel"]),
    "linear_relu": (lambda x: F.relu(LINEAR(x)), (4, 8), ["linear_relu"]),
    "where": (lambda x: torch.where(x > 0, x, x * 0.1), (6, 6), ["where_kernel"]),
    "interpolate": (
        lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
        IMAGE,
        ["interpolate_kernel"],
    ),
    "mse_loss": (lambda x: F.mse_loss(x, x * 2), (6, 6), ["mse_loss"]),
    "normalize": (lambda x: F.normalize(x, dim=1), (6, 6), ["normalize_kernel"]),
    "vector_norm": (lambda x: x.norm(), (6, 6), ["vector_norm"]),
    "dropout": (lambda x: F.dropout(F.gelu(x), 0.1), (6, 6), ["dropout_gelu"]),
    "gumbel": (F.gumbel_softmax, (6, 6), ["gumbel_softmax"]),
    "randn": (lambda x: x + torch.randn(6, 6), (6, 6), ["randn_kernel"]),
    "gelu_backward": (
        lambda x: torch.autograd.grad(F.gelu(x).sum(), x)[0],
        (6, 6),
        ["gelu_kernel", "gelu_backward"],
    ),
}


@pytest.mark.sample(2)
@pytest.mark.parametrize("name", CALLS)
def test_kernels_are_called_what_was_called(name: str) -> None:
    function, shape, wanted = CALLS[name]
    compiled = fusec.compile(function, target="plain")
    compiled(torch.randn(shape, requires_grad=name.endswith("backward")))
    assert list(compiled.kernels) == wanted


def test_what_a_pass_makes_has_no_overload_in_its_name() -> None:
    """OneDNN's products in a backward part were ``linear_pointwise_default``."""
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(64, 256), nn.SiLU(), nn.Linear(256, 64))
    compiled = fusec.compile(layers)
    compiled(torch.randn(200, 64)).square().sum().backward()
    texts = [kernel.source for kernel in compiled.kernels.values()]
    assert texts
    assert not [found for text in texts for found in re.findall(r"\w+_default\w*", text)]


def test_a_call_in_its_order_is_called_what_it_calls() -> None:
    """The check of ``linalg.solve`` was ``with_effects`` in a result."""
    compiled = fusec.compile(lambda a: torch.linalg.solve(a, a.sum(1)), target="plain")
    compiled(torch.eye(4) * 3)
    (graph,) = compiled.graphs
    assert "aten._linalg_check_errors.default" in [call.name for call in graph.externs]
