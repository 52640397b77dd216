"""Costly loops over four vectors at a time: the same bits as one vector at a time."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import fusec
from fusec.targets.cpp.plan import choices


@pytest.fixture(autouse=True)
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """No fallback to eager."""
    monkeypatch.setenv("FUSEC_STRICT", "1")
    torch._dynamo.reset()


def special(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return normal numbers, every 97th of them an infinity, NaN, zero, tiny or huge."""
    x = torch.randn(*shape)
    odd = [torch.inf, -torch.inf, torch.nan, 0.0, -0.0, 1e-40, 88.0, -104.0, 3e38]
    flat = x.view(-1)
    flat[::97] = torch.tensor(odd).repeat(flat.numel() // (97 * len(odd)) + 1)[: flat[::97].numel()]
    return x.to(dtype)


Inputs = Callable[[], tuple[torch.Tensor, ...]]
CASES: dict[str, tuple[Callable[..., torch.Tensor], Inputs]] = {
    "flat": (lambda x: x.exp() + x, lambda: (special(1 << 16),)),
    "flat with a rest": (lambda x: x.exp() + x, lambda: (special(70_013),)),
    "rows with a rest": (lambda x, y: x.tanh() * y, lambda: (special(33, 333), special(333))),
    "strided": (lambda x: x.exp() + 1, lambda: (special(40, 3000)[:, ::2],)),
    "double": (lambda x: x.exp().log1p(), lambda: (special(70, 1000, dtype=torch.float64),)),
    "integers": (lambda x: x.long().remainder(7).float().exp(), lambda: (torch.randn(90, 800),)),
    "bfloat16": (F.gelu, lambda: (special(70, 1001, dtype=torch.bfloat16),)),
    "float16": (F.silu, lambda: (special(70, 1001, dtype=torch.float16),)),
    "near and far": (lambda x: x.sin() + x.cos(), lambda: (special(70, 1003) * 100,)),
    "sums": (lambda x: x.exp().sum(-1), lambda: (special(40, 1000),)),
    "softmax": (lambda x: x.softmax(-1), lambda: (special(40, 1003),)),
    "columns": (lambda x: x.softmax(0), lambda: (special(100, 2048),)),
    "columns with a rest": (lambda x: x.softmax(0), lambda: (special(100, 2000),)),
    "dropout": (lambda x: F.dropout(x, 0.3).exp(), lambda: (special(200, 300),)),
    "condition": (lambda x: (x.exp() > 1) & (x < 2), lambda: (special(90, 999),)),
    "empty": (lambda x: x.exp(), lambda: (torch.randn(0, 1000),)),
}


def run(name: str) -> tuple[torch.Tensor, str]:
    function, inputs = CASES[name]
    torch.manual_seed(3)
    given = inputs()
    built = fusec.compile(function)
    torch.manual_seed(4)
    result = built(*given)
    return result, "".join(kernel.source for kernel in built.kernels.values())


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", CASES)
def test_the_same_bits(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    together, text = run(name)
    assert ("marks[" in text) is (name not in ("empty", "columns with a rest"))
    torch._dynamo.reset()
    monkeypatch.setattr(choices, "INTERLEAVE_COST", 1 << 30)
    alone, text = run(name)
    assert "marks[" not in text
    assert together.dtype == alone.dtype
    if together.is_floating_point():
        assert torch.equal(together.isnan(), alone.isnan())
        together, alone = together.nan_to_num(7, 8, 9), alone.nan_to_num(7, 8, 9)
    if name == "sums":  # what is left over of a row is added up in another order
        torch.testing.assert_close(together, alone)
    else:
        assert torch.equal(together, alone)


def test_cheap_loops_are_left_alone() -> None:
    built = fusec.compile(lambda x, y: x * y + 1)
    built(torch.randn(1 << 20), torch.randn(1 << 20))
    assert all("marks[" not in kernel.source for kernel in built.kernels.values())


def test_what_is_kept_for_a_later_pass_goes_side_by_side_as_well() -> None:
    compiled = fusec.compile(lambda x: x.sin().softmax(-1))
    x = torch.randn(64, 1000)
    torch.testing.assert_close(compiled(x), x.sin().softmax(-1))
    (kernel,) = compiled.kernels.values()
    assert "interleave(marks);" in kernel.source
