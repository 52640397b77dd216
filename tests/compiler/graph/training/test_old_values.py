"""Inputs that a call updates in place, and whose old values backward reads."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import fusec

Step = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
# With w a leaf and x, or for the second kind b, what is updated.
_UPDATES: dict[str, Step] = {
    "sin_": lambda w, x: w * x.sin_(),
    "pow_": lambda w, x: w * x.pow_(2.0),
    "silu": lambda w, x: w * F.silu(x, inplace=True),
    "mish": lambda w, x: w * F.mish(x, inplace=True),
    "renorm_": lambda w, x: w * x.renorm_(2.0, 0, 1.0),
    "twice": lambda w, x: w * F.silu(x.sin_(), inplace=True),
    "of a view": lambda w, x: w * x.t().sin_().t(),
    "of a row": lambda w, x: w * x[1:3].cos_().sum(),
}
_READ_BEFORE: dict[str, Step] = {
    "exp": lambda w, b: (w * b.exp(), b.add_(1))[0],
    "a turned one": lambda w, b: (w @ (b.t() + 0), b.add_(1))[0],
}
_LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "dense": lambda x: x.clone(),
    "turned": lambda x: x.t().contiguous().t(),
    "gaps": lambda x: torch.stack([x, x], -1)[..., 0],
}


def _gradients(step: Step, layout: str, dtype: torch.dtype, needs: bool) -> list[torch.Tensor]:
    torch.manual_seed(0)
    w, leaf = (torch.randn(4, 5).to(dtype).requires_grad_(needs or n == 0) for n in range(2))
    x = _LAYOUTS[layout](leaf * 1.5)
    result = step(w, x)
    (result.pow(2).sum() + x.pow(2).sum()).backward()
    return [value for value in (w.grad, leaf.grad, x.detach()) if value is not None]


_CASES = [
    *((name, layout) for name in ("sin_", "exp") for layout in _LAYOUTS),
    *(("silu", "gaps"), ("mish", "dense"), ("pow_", "turned"), ("renorm_", "dense")),
    *(("twice", "gaps"), ("of a view", "gaps"), ("of a row", "turned"), ("a turned one", "gaps")),
]


@pytest.mark.sample(3)
@pytest.mark.parametrize(("name", "layout"), _CASES)
def test_backward_reads_what_an_input_was_before(name: str, layout: str) -> None:
    step = (_UPDATES | _READ_BEFORE)[name]
    needs = name in _UPDATES
    compiled = fusec.compile(step, dynamic=layout == "turned")
    mine = _gradients(compiled, layout, torch.float32, needs)
    assert not compiled.fallbacks
    for dtype in (torch.float32, torch.float64):
        for got, want in zip(mine, _gradients(step, layout, dtype, needs), strict=True):
            torch.testing.assert_close(got, want, check_dtype=False, rtol=1e-5, atol=1e-5)


def test_an_update_that_eager_refuses_is_refused() -> None:
    def read_and_updated(w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return (w * b, b.add_(1))[0]

    w = torch.ones(3, requires_grad=True)
    for function in (read_and_updated, fusec.compile(read_and_updated)):
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            function(w, torch.ones(3)).sum().backward()
