"""Products with weights of few bits, and rows quantized by their own extremes, in Triton."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import fusec
from fusec.targets.triton.emit import emit_triton
from fusec.tunables import read_tunables
from support.few_bits import FP8, UNPACKED, gated, in_turns, quantize
from support.triton_bodies import sum_all

HALF, BF16, F32 = torch.float16, torch.bfloat16, torch.float32
GROUP = 64


@pytest.fixture(autouse=True)
def _strict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FUSEC_STRICT", "1")
    torch._dynamo.reset()


# -- weights of four bits ------------------------------------------------------------------


def scaled(w: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    grouped = w.to(s.dtype).reshape(w.shape[0], -1, GROUP)
    return ((grouped - 8) * s[:, :, None]).reshape(w.shape)


def with_zeros(w: torch.Tensor, s: torch.Tensor, zeros: torch.Tensor) -> torch.Tensor:
    """A zero for each group, which is no whole number."""
    grouped = w.to(s.dtype).reshape(w.shape[0], -1, GROUP)
    return (grouped * s[:, :, None] + zeros[:, :, None]).reshape(w.shape)


def packed(columns: int, inner: int, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    q = torch.randint(0, 256, (columns, inner // 2), dtype=torch.uint8)
    s, zeros = ((torch.rand(columns, inner // GROUP) + 0.1).to(dtype) for _ in range(2))
    return q, s, zeros


@pytest.mark.sample(6)
@pytest.mark.parametrize("rows", [1, 5, 16])
@pytest.mark.parametrize("dtype", [HALF, BF16], ids=str)
@pytest.mark.parametrize("form", UNPACKED)
@pytest.mark.parametrize("zeros", [False, True], ids=["eight", "zeros"])
def test_weights_of_four_bits(zeros: bool, form: str, dtype: torch.dtype, rows: int) -> None:
    unpack = UNPACKED[form]

    def product(x: torch.Tensor, q: torch.Tensor, s: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        w = with_zeros(unpack(q), s, z) if zeros else scaled(unpack(q), s)
        return x @ w.t()

    torch.manual_seed(rows)
    x = torch.randn(rows, 256).to(dtype)
    q, s, z = packed(130, 256, dtype)
    compiled = fusec.compile(product, target="triton", matmul="template")
    result = compiled(x, q, s, z)
    exact = product(x.double(), q, s.double(), z.double())
    wrong = (result.double() - exact).abs().max()
    theirs = (product(x, q, s, z).double() - exact).abs().max()
    assert wrong <= 2 * theirs + 4 * torch.finfo(dtype).eps * exact.abs().max()
    (kernel,) = compiled.kernels.values()
    assert not compiled.graphs[0].externs
    assert (" = words_at(q_ptr" in kernel.source) == (form != "halves"), kernel.source
    loads = kernel.source.count("tl.load(q_ptr")
    assert loads == (2 if form == "halves" else 0), kernel.source
    assert "tl.load(s_ptr + start // 64 + col * 4" in kernel.source, "a scale a group"


@pytest.mark.parametrize("form", UNPACKED)
def test_every_weight_is_as_eager_unpacks_it(form: str) -> None:
    unpack = UNPACKED[form]
    q = torch.arange(256, dtype=torch.uint8).repeat(2).reshape(4, 128).repeat(33, 1)
    s = (torch.rand(132, 4) * 2 - 1).to(HALF)
    s[0, 0], s[1, 1], s[2, 2] = 0.0, 2.0**-24, 65504.0
    x = torch.eye(256, dtype=HALF)[:64]
    for part in range(4):  # each element of the identity takes one weight, and adds zeros
        x = torch.eye(256, dtype=HALF)[64 * part : 64 * part + 64]
        compiled = fusec.compile(
            lambda x, q, s: x @ scaled(unpack(q), s).t(), target="triton", matmul="template"
        )
        wanted = scaled(unpack(q), s)[:, 64 * part : 64 * part + 64].t()
        finite = scaled(unpack(q), s).isfinite().all(1)
        assert torch.equal(compiled(x, q, s)[:, finite], wanted[:, finite])
        assert finite.sum() > 100


@pytest.mark.parametrize("dtype", [HALF, BF16], ids=str)
def test_weights_of_eight_bits(dtype: torch.dtype) -> None:
    def product(x: torch.Tensor, q: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        return F.linear(x, q.to(x.dtype) * s[:, None])

    torch.manual_seed(0)
    x, s = torch.randn(16, 200).to(dtype), torch.rand(130).to(dtype)
    q = torch.randint(-128, 128, (130, 200), dtype=torch.int8)
    compiled = fusec.compile(product, target="triton", matmul="template")
    exact = product(x.double(), q, s.double())
    wrong = (compiled(x, q, s).double() - exact).abs().max()
    theirs = (product(x, q, s).double() - exact).abs().max()
    assert wrong <= 2 * theirs + 4 * torch.finfo(dtype).eps * exact.abs().max()
    (kernel,) = compiled.kernels.values()
    name = "half_of_signed_byte(" if dtype == HALF else "float_of_signed_byte("
    assert name in kernel.source


def test_groups_that_no_step_lies_in() -> None:
    torch.manual_seed(0)
    x, s = torch.randn(4, 240).to(HALF), torch.rand(130, 5).to(HALF)
    q = torch.randint(0, 256, (130, 120), dtype=torch.uint8)

    def product(x: torch.Tensor, q: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        w = in_turns(q).to(x.dtype).reshape(130, 5, 48)
        return x @ ((w - 8) * s[:, :, None]).reshape(130, 240).t()

    compiled = fusec.compile(product, target="triton", matmul="template")
    exact = product(x.double(), q, s.double())
    assert (compiled(x, q, s).double() - exact).abs().max() <= 0.01 * exact.abs().max()
    (kernel,) = compiled.kernels.values()
    assert "tl.interleave(" in kernel.source
    assert "start // 48" not in kernel.source


# -- rows quantized by their own extremes --------------------------------------------------


@pytest.mark.parametrize("to", [FP8, torch.int8], ids=str)
def test_quantized_rows(to: torch.dtype) -> None:
    torch.manual_seed(0)
    a, b = (torch.randn(9, 700).to(BF16) for _ in range(2))
    compiled = fusec.compile(lambda a, b: quantize(gated(a, b), to), target="triton")
    q, scale = compiled(a, b)
    y = F.silu(a.double()) * b.double()
    most = 448.0 if to == FP8 else 127.0
    exact = y.abs().amax(-1, keepdim=True) / most
    assert ((scale.double() - exact).abs() <= 1e-6 * exact).all()
    step = (y / exact).abs().clamp(min=0.25) * 2.0**-4 if to == FP8 else 0.5
    assert ((q.double() - y / exact).abs() <= step * 1.001).all()
    (kernel,) = compiled.kernels.values()
    assert "a / (1.0 + tl.exp(" in kernel.source, "quick: 2 units in the last of 24 bits"
    assert "scale = tl.div_rn(" in kernel.source, "once a row"
    assert ("divided(" in kernel.source) == (to == torch.int8), "what is rounded is exact"


def test_what_else_is_made_of_the_elements_is_exact() -> None:
    def with_sum(a: torch.Tensor, b: torch.Tensor) -> Any:
        y = gated(a, b)
        return *quantize(y, FP8), y.sum(-1)

    def with_steps(a: torch.Tensor, b: torch.Tensor) -> Any:
        y = gated(a, b)
        return *quantize(y, FP8), (y > 0.25).to(torch.int8)

    a, b = (torch.randn(4, 300).to(BF16) for _ in range(2))
    for function in (with_sum, with_steps):
        compiled = fusec.compile(function, target="triton")
        compiled(a, b)
        (kernel,) = compiled.kernels.values()
        assert "tl.div_rn(a, " in kernel.source, kernel.source


def test_whole_numbers_that_lie_halfway_stay_there() -> None:
    x = torch.tensor([[127.0, 0.5, 1.5, -2.5, 63.5, 0.0]]) * 2.0**-3
    compiled = fusec.compile(lambda x: quantize(x, torch.int8), target="triton")
    assert compiled(x)[0].tolist() == [[127, 0, 2, -2, 64, 0]]


# -- shifts, and sums of very much ---------------------------------------------------------


@pytest.mark.parametrize("target", ["cpp", "triton"])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int32, torch.int64], ids=str)
def test_shifts_are_kernels(dtype: torch.dtype, target: str) -> None:
    functions: list[Callable[..., Any]] = [
        lambda q, n: (q >> 4) + 1,
        lambda q, n: (q << 2) + 1,
        lambda q, n: (q >> n, q << n),
    ]
    low = 0 if dtype == torch.uint8 else -100
    q = torch.randint(low, 120, (50,)).to(dtype)
    n = torch.randint(0, 7, (50,)).to(dtype)
    for function in functions:
        compiled = fusec.compile(function, target=target)
        torch.testing.assert_close(compiled(q, n), function(q, n), rtol=0, atol=0)
        assert not compiled.graphs[0].externs


def test_programs_take_turns_where_very_much_is_added_up() -> None:
    def splits(elements: int) -> int:
        case = sum_all(elements)
        source = emit_triton(case.name, case.body, case.buffers)
        return next(each.value for each in read_tunables(source.text) if each.name == "SPLITS")

    assert splits(1 << 28) == 16384
    assert splits(1 << 24) < 1024
