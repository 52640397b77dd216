"""Selects without a branch: where one decides the next, and that they choose what eager does."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F

import fusec

SPECIAL = [float("nan"), float("inf"), float("-inf"), -0.0, 0.0, -1.0, 1.0, 6.0, 1e-40, 3e4]
Function = Callable[[torch.Tensor], torch.Tensor]
CHAINS: dict[str, Function] = {
    "two clamps": lambda x: F.hardtanh(x) * 2 + F.relu6(x),
    "a clamp and a function": lambda x: torch.exp(x.clamp(-5, 5)),
    "a clamp and a sine": lambda x: torch.sin(x.clamp(-1, 1)),
    "extremes": lambda x: torch.minimum(torch.maximum(x, x * 2), x + 1).clamp(-2.0, 0.5),
    "an extreme decides": lambda x: torch.where(torch.maximum(x, -x) > 1, x, x * 3),
    "far": lambda x: torch.where((x.relu() * 0.5 + 1) < 2, x, 7.0),
}
ALONE: dict[str, Function] = {
    "one": F.relu,
    "an extreme": lambda x: torch.maximum(x, x * 2),
    "side by side": lambda x: x.relu() + (x * 2).relu(),
    "nothing known": lambda x: torch.where(torch.where(x > 0, x, x * x) > 1, x, x + 1),
    "integers": lambda x: x.to(torch.int32).clamp(-1, 1),
}


def texts(compiled: fusec.CompiledFunction) -> str:
    return "".join(kernel.source for kernel in compiled.kernels.values())


def input_of(size: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.cat([torch.tensor(SPECIAL), torch.randn(size - len(SPECIAL)) * 3]).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", CHAINS)
def test_chains(name: str, dtype: torch.dtype) -> None:
    function = CHAINS[name]
    if name == "far" and dtype in (torch.float16, torch.bfloat16):
        pytest.skip("eager rounds a half before it compares it")
    compiled = fusec.compile(function)
    for size in (77, 1031):
        x = input_of(size, dtype)
        found, wanted = compiled(x), function(x)
        torch.testing.assert_close(found, wanted, equal_nan=True)
        zero = wanted == 0
        assert torch.equal(found[zero].signbit(), wanted[zero].signbit())
    if dtype not in (torch.float16, torch.bfloat16):
        assert "fx_choose(" in texts(compiled)


@pytest.mark.parametrize("name", ALONE)
def test_selects_that_decide_nothing(name: str) -> None:
    compiled = fusec.compile(ALONE[name])
    x = torch.randn(77)
    assert torch.equal(compiled(x), ALONE[name](x))
    assert "fx_choose(" not in texts(compiled)


def test_what_is_read_on_one_way_alone_stays_a_branch() -> None:
    """A select of bits would read the element that its condition keeps from being read."""

    def function(x: torch.Tensor) -> torch.Tensor:
        return F.pad(x, (1, 2)).clamp(-0.5, 0.5).exp()

    compiled = fusec.compile(function)
    x = torch.randn(9, 33)
    torch.testing.assert_close(compiled(x), function(x))
    text = texts(compiled)
    assert "fx_choose(" in text
    for line in text.splitlines():
        assert not ("fx_choose(" in line and "x[" in line), line
