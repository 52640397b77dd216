"""On a GPU: weights of few bits, quantized rows, very large sums. Skipped elsewhere."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import fusec
from support.few_bits import FP8, UNPACKED, gated, quantize

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"),
]
HALF, BF16 = torch.float16, torch.bfloat16


@pytest.fixture(autouse=True)
def _strict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEC_STRICT", "1")
    torch._dynamo.reset()


@pytest.mark.parametrize("shape", [(1, 1000, 4096), (16, 4096, 1024), (7, 555, 11008)])
@pytest.mark.parametrize("dtype", [HALF, BF16], ids=str)
@pytest.mark.parametrize("form", UNPACKED)
def test_weights_of_four_bits(form: str, dtype: torch.dtype, shape: tuple[int, int, int]) -> None:
    rows, columns, inner = shape
    unpack = UNPACKED[form]

    def product(x: Any, q: Any, s: Any) -> Any:
        w = unpack(q).to(s.dtype).reshape(columns, -1, 128)
        return x @ ((w - 8) * s[:, :, None]).reshape(columns, inner).t()

    x = torch.randn(rows, inner, device="cuda").to(dtype)
    q = torch.randint(0, 256, (columns, inner // 2), dtype=torch.uint8, device="cuda")
    s = (torch.rand(columns, inner // 128, device="cuda") + 0.1).to(dtype)
    compiled = fusec.compile(product, tuned=False)
    exact = product(x.double(), q, s.double())
    wrong, theirs = ((f(x, q, s).double() - exact).abs().max().item() for f in (compiled, product))
    assert wrong <= 2 * theirs + 4 * torch.finfo(dtype).eps * exact.abs().max().item()
    assert len(compiled.kernels) == 1, "no matrix in memory"
    assert not compiled.graphs[0].externs


@pytest.mark.parametrize("to", [FP8, torch.int8], ids=str)
@pytest.mark.parametrize("shape", [(300, 14336), (1000, 4096), (64, 700)])
def test_quantized_rows(shape: tuple[int, int], to: torch.dtype) -> None:
    a, b = (torch.randn(shape, device="cuda").to(BF16) for _ in range(2))
    compiled = fusec.compile(lambda a, b: quantize(gated(a, b), to), tuned=False)
    q, scale = compiled(a, b)
    most = 448.0 if to == FP8 else 127.0
    y = torch.nn.functional.silu(a.double()) * b.double()
    exact = y.abs().amax(-1, keepdim=True) / most
    assert ((scale.double() - exact).abs() <= 1e-6 * exact).all()
    step = (y / exact).abs().clamp(min=0.25) * 2.0**-4 if to == FP8 else 0.5
    assert ((q.double() - y / exact).abs() <= step * 1.001).all()


@pytest.mark.parametrize("elements", [(1 << 26) + 3, 1 << 27])
def test_sum_of_very_much(elements: int) -> None:
    x = torch.randn(elements, device="cuda", dtype=HALF)
    exact = x.double().sum().item()
    compiled = fusec.compile(lambda x: (x.float().sum(), x.float().abs().amax()), tuned=False)
    total, most = compiled(x)
    assert abs(total.item() - exact) <= 1e-6 * x.double().abs().sum().item()
    assert most.item() == x.abs().max().item()
