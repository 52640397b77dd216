"""A graph of ``jvp`` that AOTAutograd fails at runs in eager, and so does every later one."""

from __future__ import annotations

import pytest
import torch
from torch.func import grad, jvp, vmap

import fusec
from fusec.capture.transforms_left import transforms_left


def parts(v: torch.Tensor) -> torch.Tensor:
    """Return some of a tensor's memory, of which torch cannot trace the forward gradient."""
    return v.as_strided((2, 2), (1, 1), 0) * 2


def test_forward_gradients_that_cannot_be_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FUSEC_STRICT", raising=False)

    def run(x: torch.Tensor, t: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return jvp(parts, (x,), (t,))  # type: ignore[no-any-return]

    x, t = torch.randn(20)[2:8], torch.randn(6)
    compiled = fusec.compile(run)
    for actual, expected in zip(compiled(x, t), run(x, t), strict=True):
        assert torch.equal(actual, expected)
    assert "AOTAutograd refuses it" in str(compiled.graphs[0].fallback)
    primal, tangent = jvp(torch.sin, (t,), (x,))
    assert torch.equal(tangent, t.cos() * x)
    assert torch.equal(primal, t.sin())


def enters_and_fails() -> None:
    with transforms_left():
        torch._C._functorch._vmap_increment_nesting(3, "error")
        torch._C._functorch._grad_increment_nesting()
        raise ValueError("made up")


def test_what_was_entered_is_left_what_was_there_is_not() -> None:
    def fails(v: torch.Tensor) -> torch.Tensor:
        with pytest.raises(ValueError, match="made up"):
            enters_and_fails()
        return v.sin()

    x = torch.randn(3)
    assert torch.equal(vmap(grad(fails))(x), x.cos())
    assert torch.equal(jvp(fails, (x,), (x,))[1], x.cos() * x)
    assert not torch._C._functorch.get_interpreter_stack()
