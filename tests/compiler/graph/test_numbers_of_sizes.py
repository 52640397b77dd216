"""Numbers that follow from symbolic sizes stand among tensors, in graphs with gradients too."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import fusec
from support.compare import difference

Function = Callable[[torch.Tensor], torch.Tensor]

FUNCTIONS: dict[str, Function] = {
    "nearest pixels": lambda x: F.interpolate(x, size=(3, 9), mode="nearest"),
    "nearest, exactly": lambda x: F.interpolate(x, size=(3, 9), mode="nearest-exact"),
    "lines between pixels": lambda x: F.interpolate(x, size=(3, 9), mode="bilinear"),
    "a quotient of sizes": lambda x: (x * (x.size(2) / 3)).sigmoid() * x,
    "positions scaled": lambda x: (torch.arange(9) * (x.size(3) / 9)).cos()[:3].sum() * x,
    "a root of a size": lambda x: (x / x.size(-1) ** 0.5).softmax(-1).relu(),
    "a size as a weight": lambda x: torch.lerp(x, x.tanh(), 1 / x.size(2)).exp(),
    "a size as a correction": lambda x: x / x.std(3, correction=x.size(3) - 1, keepdim=True),
    "a norm of what is scaled": lambda x: F.layer_norm(x * x.size(1), (x.size(-1),)) * x.size(3),
}


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_with_gradients(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEC_STRICT", "1")
    torch._dynamo.reset()
    function = FUNCTIONS[name]
    compiled = fusec.compile(function, dynamic=True)
    for shape in ((2, 3, 5, 6), (4, 2, 3, 7)):
        x = torch.randn(shape, generator=torch.Generator().manual_seed(3))
        found = []
        for call in (compiled, function):
            given = x.clone().requires_grad_()
            result = call(given)
            (result * torch.linspace(0.5, 2, result.size(-1))).sum().backward()
            found.append([result, given.grad])
        assert not difference(*found)
