"""A tensor times a number that the GPU alone knows, run by Triton's interpreter."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from fusec.targets.triton import multiply
from fusec.targets.triton.toolchain.interpret import interpreting


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("factor", [1.0, 0.0, -2.5, float("nan")])
@pytest.mark.parametrize("shape", [(0,), (), (3, 5), (5, 4099)], ids=str)
def test_it_is_as_eager_multiplies(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...], factor: float, dtype: torch.dtype
) -> None:
    import triton.experimental.gluon  # noqa: F401 - which fails while kernels are interpreted
    from triton.runtime.interpreter import InterpretedFunction

    monkeypatch.setattr(multiply, "BLOCK", 512)
    monkeypatch.setattr(multiply, "PROGRAMS", 1)
    machine = SimpleNamespace(gpu=SimpleNamespace(processors=2))  # programs go through the tensor
    monkeypatch.setattr(multiply, "current_machine", lambda: machine)
    x = torch.randn(shape, dtype=dtype)
    wanted = (x.float() * factor).to(dtype)
    with interpreting():
        kernel = InterpretedFunction(multiply.multiply_unless_one.fn)
        multiply.multiply_in_place(x, torch.tensor([factor]), launcher=kernel)
    torch.testing.assert_close(x, wanted, rtol=0, atol=0, equal_nan=True)
