"""Products with weights of few bits, and rows quantized by their own extremes, in Triton."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import fusec
from fusec.ir.index import Symbol
from fusec.ir.node import const
from fusec.targets.triton.emit import emit_triton
from fusec.targets.triton.rewrite.word_operands import Words, order_of
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


@pytest.mark.triton
@pytest.mark.sample(4)
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
    assert "start // 64" in kernel.source, "a scale a group"


@pytest.mark.triton
@pytest.mark.parametrize("rows", [9, 17])
def test_of_few_rows_the_sums_are_scaled(rows: int) -> None:
    """Not the weights, of which there are more; nor where something is added to each of them."""

    def product(x: torch.Tensor, q: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        return x @ scaled(in_turns(q), s).t()

    torch.manual_seed(0)
    x, (q, s, z) = torch.randn(rows, 256).to(HALF), packed(130, 256, HALF)
    compiled = fusec.compile(product, target="triton", matmul="template")
    exact = product(x.double(), q, s.double())
    assert (compiled(x, q, s).double() - exact).abs().max() <= 2e-3 * exact.abs().max()
    (kernel,) = compiled.kernels.values()
    of_sums = "tl.dot(right.T, x_in_order.T) * (s.T.to(tl.float32) * 16777216.0)"
    assert (of_sums in kernel.source) == (rows <= 16), kernel.source
    compiled = fusec.compile(
        lambda x, q, s, z: x @ with_zeros(in_turns(q), s, z).t(), target="triton", matmul="template"
    )
    exact = with_zeros(in_turns(q), s.double(), z.double())
    exact = x.double() @ exact.t()
    assert (compiled(x, q, s, z).double() - exact).abs().max() <= 2e-3 * exact.abs().max()
    (kernel,) = compiled.kernels.values()
    assert "total = tl.dot(" in kernel.source, kernel.source


@pytest.mark.triton
def test_one_row_is_fetched_ahead_as_a_tile() -> None:
    def product(x: torch.Tensor, q: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        return x.expand(17, -1) @ scaled(in_turns(q), s).t()

    x, (q, s, _) = torch.ones(1, 256).to(HALF), packed(130, 256, HALF)
    compiled = fusec.compile(product, target="triton", matmul="template")
    wanted = product(x.double(), q, s.double())
    torch.testing.assert_close(compiled(x, q, s).double(), wanted, rtol=2e-3, atol=0.2)
    (kernel,) = compiled.kernels.values()
    assert "words_at(q_ptr" in kernel.source
    load = "x = tl.load(tl.broadcast_to(x_ptr + k, [BLOCK_M, BLOCK_K]), row_inside, other=0.0)"
    assert load in kernel.source


@pytest.mark.triton
@pytest.mark.sample(2)
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


@pytest.mark.triton
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


def down_columns(q: torch.Tensor) -> torch.Tensor:
    """Eight numbers down a column, as GPTQ packs them; the matrix lies the other way round."""
    shifts = torch.arange(0, 32, 4, dtype=torch.int32)
    return ((q[:, None, :] >> shifts[None, :, None]) & 15).reshape(-1, q.shape[1]).t()


def along_rows(q: torch.Tensor) -> torch.Tensor:
    shifts = torch.arange(0, 32, 4, dtype=torch.int32)
    return ((q[..., None] >> shifts) & 15).reshape(q.shape[0], -1)


@pytest.mark.triton
@pytest.mark.parametrize("dtype", [HALF, BF16], ids=str)
@pytest.mark.parametrize("unpack", [down_columns, along_rows], ids=lambda f: f.__name__)
def test_numbers_in_words(unpack: Callable[..., Any], dtype: torch.dtype) -> None:
    def product(x: torch.Tensor, q: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        return x @ scaled(unpack(q), s).t()

    torch.manual_seed(0)
    shape = (32, 132) if unpack is down_columns else (132, 32)
    q = torch.randint(-(2**31), 2**31 - 1, shape, dtype=torch.int32)
    s = (torch.rand(132, 4) * 2 - 1).to(dtype)
    compiled = fusec.compile(product, target="triton", matmul="template")
    for part in range(4):  # each element of the identity takes one weight, and adds zeros
        x = torch.eye(256, dtype=dtype)[64 * part : 64 * part + 64]
        assert torch.equal(compiled(x, q, s), product(x, q, s))
    source = "".join(each.source for each in compiled.kernels.values())
    helper = "halves_of_nibbles(q" if dtype == HALF else "bfloats_of_nibbles(q"
    assert helper in source, source


@pytest.mark.parametrize(
    "numbers",
    [
        [0, 1, 2, 3, 4, 5, 6, 7],
        [1, 0, 3, 2, 5, 4, 7, 6],
        [7, 6, 5, 4, 3, 2, 1, 0],
        [0, 4, 1, 5, 2, 6, 3, 7],  # AWQ's
        [3, 2, 1, 0],
    ],
    ids=str,
)
def test_rows_are_laid_in_the_order_of_the_words(numbers: list[int]) -> None:
    found = order_of(numbers)
    assert found is not None
    order, flip = found
    count, step, inner = len(numbers), 128, 128 // (4 * len(numbers))
    words = Words(const(0, F32), Symbol("word"), count, order, None, {})
    text = words.reordered("x", "1", "step").replace("tl.", "torch.")
    laid = eval(text, {"torch": torch, "x": torch.arange(step)[None], "step": step}).flatten()
    half = count.bit_length() - 2  # bits of a number's place, but for the highest
    expected = []
    for word in range(inner):
        for low in range(1 << half):
            for thread in range(4):
                for pair in range(2):
                    number = (pair << half | low) ^ flip
                    expected.append((thread * inner + word) * count + numbers.index(number))
    assert laid.tolist() == expected


def test_other_orders_are_not_read_as_words() -> None:
    assert order_of([0, 1, 2, 3, 4, 5, 7, 6]) is None
    assert order_of([0, 0, 1, 1]) is None


@pytest.mark.triton
def test_bytes_that_begin_anywhere() -> None:
    x, (q, s, _) = torch.randn(3, 256).to(HALF), packed(130, 256, HALF)

    def product(x: torch.Tensor, q: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        return x @ scaled(in_turns(q), s).t()

    compiled = fusec.compile(product, target="triton", matmul="template")
    wanted = compiled(x, q, s)
    for begin in (1, 2, 4):
        moved = torch.empty(q.numel() + begin, dtype=torch.uint8)[begin:].view(q.shape).copy_(q)
        assert moved.data_ptr() % 16
        assert torch.equal(compiled(x, moved, s), wanted)
    assert compiled.kernels.popitem()[1].source.count(" = words_at(q_ptr") == 1


@pytest.mark.triton
def test_numbers_whose_words_begin_elsewhere_are_read_by_bytes() -> None:
    """Rows of 33 bytes; and signed numbers of four bits, which no word is masked for."""

    def odd(x: torch.Tensor, q: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        return x @ scaled(in_turns(q[:, 1:]), s).t()

    def signed(x: torch.Tensor, q: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
        w = torch.stack([(q << 4) >> 4, q >> 4], -1).reshape(q.shape[0], -1).to(s.dtype)
        return x @ (w.reshape(q.shape[0], -1, GROUP) * s[:, :, None]).reshape(w.shape).t()

    x, s = torch.randn(3, 256).to(HALF), torch.rand(130, 4).to(HALF)
    for function, q in (
        (odd, torch.randint(0, 256, (130, 129), dtype=torch.uint8)),
        (signed, torch.randint(-128, 128, (130, 128), dtype=torch.int8)),
    ):
        compiled = fusec.compile(function, target="triton", matmul="template")
        exact = function(x.double(), q, s.double())
        assert (compiled(x, q, s).double() - exact).abs().max() <= 0.01 * exact.abs().max()
        assert "words_at(" not in compiled.kernels.popitem()[1].source


@pytest.mark.triton
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


@pytest.mark.triton
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


@pytest.mark.triton
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


@pytest.mark.triton
def test_whole_numbers_that_lie_halfway_stay_there() -> None:
    x = torch.tensor([[127.0, 0.5, 1.5, -2.5, 63.5, 0.0]]) * 2.0**-3
    compiled = fusec.compile(lambda x: quantize(x, torch.int8), target="triton")
    assert compiled(x)[0].tolist() == [[127, 0, 2, -2, 64, 0]]


# -- shifts, and sums of very much ---------------------------------------------------------


@pytest.mark.sample(4)
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
